"""Submit the wings of an anchor, also where sbatch refuses them for a while.

The wing of a start is tried again for a minute, and while slurmctld does not answer, for ten. Then the job
fails: its checkpoint stays. Where a limit on jobs is the reason, the anchor goes back into the queue instead.

A wing may be in the queue though sbatch did not say so: slurmctld had accepted it, and its answer was lost.
Such ones are cancelled before the next is submitted, and so are those that an earlier run of the anchor left.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence

from pollux_slurm.errors import LaunchError, SlurmCommandError, SlurmError, SlurmUnavailable
from pollux_slurm.launch.anchor.place import Place, in_one_line
from pollux_slurm.launch.anchor.start import Start, Wing
from pollux_slurm.launch.anchor.wing_jobs import WingJobs
from pollux_slurm.launch.node.signal_wait import wait_for_signal
from pollux_slurm.launch.node.watched_processes import STOPPING

# How long the wing of a start is submitted again.
_REFUSED_S, _UNAVAILABLE_S = 60.0, 600.0
_PAUSE_S, _MAX_RETRY_PAUSE_S = 0.1, 20.0
# In sbatch's words for AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit and the like.
_SUBMIT_LIMIT = re.compile(r"Submit\w*Limit|job submit limit")


class Submission:
    """Submits the wings of one run of an anchor."""

    def __init__(
        self, jobs: WingJobs, place: Place, say: Callable[[str], None], monotonic: Callable[[], float]
    ) -> None:
        self._jobs, self._place, self._say, self._monotonic = jobs, place, say, monotonic
        self._may_have_unknown_wings = True

    def submit(
        self, start: Start, request: Sequence[str], *, plan: int, rest_s: float | None, begin_s: float = 0.0
    ) -> Wing:
        """Submit a wing with the options `request`. Raises `SlurmError`."""
        if self._may_have_unknown_wings:
            unknown = [number for number in self._jobs.left_behind() if number not in start.wings]
            self._jobs.cancel(unknown, self._say)
            self._may_have_unknown_wings = False
        try:
            number = self._jobs.submit(
                request,
                restart_count=start.restart_count,
                plan=plan,
                number=len(start.wings),
                time_limit_s=rest_s,
                begin_s=begin_s,
            )
        except SlurmError as error:
            # Only a refusal says that there is none.
            self._may_have_unknown_wings = not isinstance(error, SlurmCommandError)
            raise
        start.wings[number] = wing = Wing(number, plan)
        return wing

    def submit_first(
        self,
        start: Start,
        request: Sequence[str],
        watched: set[signal.Signals],
        *,
        rest_s: float | None,
        begin_s: float,
    ) -> Wing | None:
        """Submit the wing that a start begins with; None where the anchor ends meanwhile.

        Raises `LaunchError` where sbatch goes on refusing it.
        """
        job_id, began_s, pause_s, said = self._jobs.anchor_id, self._monotonic(), 1.0, ""
        while True:
            try:
                return self.submit(start, request, plan=0, rest_s=rest_s, begin_s=begin_s)
            except SlurmError as error:
                text, limit_s = in_one_line(error), _REFUSED_S
                if isinstance(error, SlurmUnavailable):
                    limit_s = _UNAVAILABLE_S
            if self._monotonic() - began_s >= limit_s:
                if not _SUBMIT_LIMIT.search(text):
                    raise LaunchError(
                        f"job {job_id}: no wing of it can be submitted on this node, so that it cannot "
                        f"train: {text}; if it is only that nodes may not submit, use pollux sbatch "
                        "--no-in-place"
                    )
                if self._place.give_up(
                    "a limit on the number of jobs keeps its wing out of the queue", self._monotonic()
                ):
                    return None
            if text != said:
                self._say(f"job {job_id}: its wing cannot be submitted, and is tried again: {text}")
                said = text
            if self._was_stopped_within(pause_s, watched):
                return None
            pause_s = min(2 * pause_s, _MAX_RETRY_PAUSE_S)

    def _was_stopped_within(self, wait_s: float, watched: set[signal.Signals]) -> bool:
        until_s = self._monotonic() + wait_s
        while (left_s := until_s - self._monotonic()) > 0:
            if wait_for_signal(watched, min(left_s, _PAUSE_S)) in STOPPING:
                return True
        return False
