"""Whose jobs a daemon may move: everybody's as root, SlurmUser or an operator, else its own user's alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pollux_slurm.errors import ConfigError

# AdminLevels of slurmdbd that may update and requeue any job.
_ACTS_FOR_ALL = frozenset({"operator", "administrator"})


class Scope:
    """Whose jobs are served, found out once.

    `wanted` is the setting `daemon.jobs`; `settings` asks slurmctld for its settings, and `admin_level`
    slurmdbd for the level of a user of that name. Neither is asked where root acts, or `wanted` is "own".
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
        self._found: tuple[int | None] | None = None

    def __call__(self) -> int | None:
        """Return the user id whose jobs alone are served, None for everybody's.

        Raises `ConfigError` when everybody's are wanted and this user lacks the right, `SlurmError` when it
        cannot be found out now.
        """
        if self._found is None:
            self._found = (self._find(),)
        return self._found[0]

    def _find(self) -> int | None:
        if self._wanted == "own":
            return self._user_id
        if self._user_id == 0 or self._acts_for_all(self._settings()):
            return None
        if self._wanted == "all":
            raise ConfigError(
                'daemon.jobs = "all" takes root, SlurmUser or an operator (sacctmgr modify user '
                f"{self._user_name} set adminlevel=operator), and {self._user_name} is none of them: Slurm "
                'would refuse to move other users\' jobs. For own jobs only, set daemon.jobs = "own"'
            )
        return self._user_id

    def _acts_for_all(self, site: Mapping[str, str]) -> bool:
        # Such as `slurm(64030)`.
        slurm_user = re.match(r"(.*)\((\d+)\)$", site.get("SlurmUser", ""))
        if slurm_user is not None and int(slurm_user[2]) == self._user_id:
            return True
        if "slurmdbd" not in site.get("AccountingStorageType", ""):
            return False
        return self._admin_level(self._user_name).lower() in _ACTS_FOR_ALL


def everybody() -> int | None:
    """Serve everybody's jobs, whatever Slurm will say to that."""
    return None
