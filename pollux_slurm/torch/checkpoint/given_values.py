"""Compare what a script gives with what it gave when the job's checkpoint was written.

A value that the script computes from the number of processes would change the training with each move. It is
recognised at another number: it differs by just the ratio of the two numbers, or its inverse.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from pollux_slurm.errors import UsageError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenValues:
    """The values that a script gives in a process that was started as one of `num_replicas`.

    They stay as they are in a process whose training regroups. `accepts` makes a line in the log of what is
    an error otherwise; `logs` is True on the replica that writes them.
    """

    num_replicas: int
    accepts: bool
    logs: bool

    def compare(
        self,
        what: str,
        now: float,
        before: float | None,
        num_replicas: int | None,
        *,
        cure: str,
        holds: str,
    ) -> None:
        """Compare a value with the one that a checkpoint has, given in a run of `num_replicas`.

        Raises `UsageError`, which ends in `cure`, where it follows the number of processes. Any other
        difference is a line in the log, which says what `holds`. None: the checkpoint has no such value.
        """
        if before is None or num_replicas is None or now == before:
            return
        if not self.accepts and follows(now, before, self.num_replicas, num_replicas):
            raise UsageError(
                f"{what} was {before:g} with {_processes(num_replicas)} and is {now:g} with "
                f"{_processes(self.num_replicas)}: it follows the number of processes, so each move would "
                f"change the training. {cure}. Where you have changed it yourself, start once with "
                "POLLUX_ACCEPT_CHANGES=1"
            )
        if self.logs:
            _LOG.warning("%s is %g, and was %g at the checkpoint: %s", what, now, before, holds)


def follows(now: float, before: float, num_now: int, num_before: int) -> bool:
    """Return whether a value is a share of a whole, or a multiple of a part, by the number of processes.

    One of two whole numbers may be rounded down or up, where the other is an exact share. It may not where
    the numbers of processes are close: then small values fit by chance.
    """
    if num_now == num_before:
        return False
    if math.isclose(now * num_before, before * num_now, rel_tol=1e-6):
        return True
    if math.isclose(now * num_now, before * num_before, rel_tol=1e-6):
        return True
    if not (float(now).is_integer() and float(before).is_integer()):
        return False
    if 3 * max(num_now, num_before) < 4 * min(num_now, num_before):
        return False
    shares = ((before * num_before, now, num_now), (now * num_now, before, num_before))
    return any(share in (whole // number, -(-whole // number)) for whole, share, number in shares)


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"
