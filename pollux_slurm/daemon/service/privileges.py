"""Whose jobs a daemon may move: all users' as root, SlurmUser or an operator, else only its own user's.

And whether it may put a job before all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pollux_slurm.errors import ConfigError

# AdminLevels of slurmdbd that may update and requeue any job.
_OPERATOR_LEVELS = frozenset({"operator", "administrator"})


class Scope:
    """Returns whose jobs are served; determined once.

    `wanted` is the setting `daemon.jobs`. `settings` reads slurmctld's settings, and `admin_level` a user's
    level in slurmdbd. Neither is called for root, or where `wanted` is "own".
    """

    def __init__(
        self,
        wanted: str,
        *,
        user_id: int,
        user_name: str,
        settings: Callable[[], Mapping[str, str]],
        admin_level: Callable[[str], str],
    ) -> None:
        self._wanted, self._user_id, self._user_name = wanted, user_id, user_name
        self._settings, self._admin_level = settings, admin_level
        self._scope: tuple[int | None] | None = None

    def __call__(self) -> int | None:
        """Return the id of the only user whose jobs are served, None for all users.

        Raises `ConfigError` when all users' jobs are wanted without the right to move them, and `SlurmError`
        when Slurm cannot be asked now.
        """
        if self._scope is None:
            self._scope = (self._find(),)
        return self._scope[0]

    def _find(self) -> int | None:
        if self._wanted == "own":
            return self._user_id
        if self._user_id == 0 or self._is_privileged(self._settings()):
            return None
        if self._wanted == "all":
            raise ConfigError(
                'daemon.jobs = "all" takes root, SlurmUser or an operator (sacctmgr modify user '
                f"{self._user_name} set adminlevel=operator), and {self._user_name} is none of them: Slurm "
                'would refuse to move other users\' jobs. For own jobs only, set daemon.jobs = "own"'
            )
        return self._user_id

    def _is_privileged(self, site: Mapping[str, str]) -> bool:
        # For example `slurm(64030)`.
        slurm_user = re.match(r"(.*)\((\d+)\)$", site.get("SlurmUser", ""))
        if slurm_user is not None and int(slurm_user[2]) == self._user_id:
            return True
        if "slurmdbd" not in site.get("AccountingStorageType", ""):
            return False
        return self._admin_level(self._user_name).lower() in _OPERATOR_LEVELS


class MayPrioritise:
    """Returns whether jobs may be put before all others; determined once.

    It takes the right to do so. And no job's owner may be able to hand its priority on to another job: with
    `enable_user_top`, they can (`scontrol top`), and what is taken off the first job stays with the other.
    """

    def __init__(self, scope: Callable[[], int | None], settings: Callable[[], Mapping[str, str]]) -> None:
        self._scope, self._settings = scope, settings
        self._may: bool | None = None

    def __call__(self) -> bool:
        """Raises `SlurmError` when Slurm cannot be asked now."""
        if self._may is None:
            self._may = self._scope() is None and not users_may_reorder(self._settings())
        return self._may


def users_may_reorder(site: Mapping[str, str]) -> bool:
    """Whether `scontrol top` is for everybody."""
    return "enable_user_top" in site.get("SchedulerParameters", "").split(",")


def all_users() -> int | None:
    """Serve all users' jobs, without a check of this user's rights."""
    return None
