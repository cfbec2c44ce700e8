"""An anchor's place: its own job as the queue shows it.

- The anchor has lost it where its job is not here: Slurm has requeued it since this node's slurmd was lost,
  and may have started it elsewhere. A slurmctld that does not answer says nothing.
- It gives it up while its start's wing waits, since nothing runs then, and goes back into the queue: where a
  limit on the number of jobs keeps the wing waiting for about a minute, since another job's wing may need the
  room; where less of the anchor's own time is left than the training needs, since that begins anew in the
  queue, but not before a quarter of that has passed; and where its node is drained.
- `scontrol hold` and `release` only leave a note on a job that runs (22.05). They are passed on to the wing
  that waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from pollux_slurm.errors import SlurmError
from pollux_slurm.launch.anchor.seen_job import SeenJob
from pollux_slurm.launch.anchor.start import Start
from pollux_slurm.launch.anchor.wing_jobs import WingJobs
from pollux_slurm.model import JobState

# Of several anchors that keep each other's wings waiting, one goes first, so that the others need not.
_LIMITED_S = (40.0, 80.0)
# What an anchor needs beside the training's time: until the wing begins, and for the last checkpoint.
_MARGIN_S = 300.0
# A younger place is kept, by seconds or by its share of the training's time: its wing would lose its own in
# the queue for little more time.
_WORTH_S, _WORTH_SHARE = 600.0, 0.25
_REFUSED_S = 600.0
_NODE_LOOK_INTERVAL_S = 60.0
_BEGIN_S = (60.0, 180.0)


class Place:
    """The place of one run of an anchor, which began at `began_s`."""

    def __init__(self, jobs: WingJobs, say: Callable[[str], None], *, began_s: float) -> None:
        self._jobs, self._say, self._began_s = jobs, say, began_s
        self._id = jobs.anchor_id
        self._limited_since_s: float | None = None
        self._limited_s = 0.0
        self._next_node_look_s = began_s + _NODE_LOOK_INTERVAL_S
        self._next_try_s = began_s

    def is_lost(
        self, start: Start, seen: Mapping[str, SeenJob], now_s: float, *, rest_s: float | None
    ) -> bool:
        """Return whether this run of the anchor ends, and pass on its hold.

        `seen` is what the queue shows. The training has `rest_s` of its time left, None without a limit.
        """
        own, wing = seen.get(self._id), seen.get(start.first.job_id)
        if own is None:
            return False
        if own.state is JobState.PENDING or own.state.is_over or own.node not in ("", self._jobs.node):
            where = f" on {own.node}" if own.node else ""
            self._say(f"job {self._id} is {own.state.value}{where} for Slurm, so that this run of it ends")
            return True
        if wing is None or wing.state is not JobState.PENDING:
            self._limited_since_s = None
            return False
        # A wing that its owner holds would be followed by one that is not held.
        may_leave = start.is_hold_passed_on or not wing.is_held
        because = self._reason_to_leave(own, wing, now_s, rest_s) if may_leave else None
        if because is not None and self.give_up(because, now_s):
            return True
        self._pass_on_hold(start, own, wing)
        return False

    def give_up(self, because: str, now_s: float) -> bool:
        """Requeue the anchor, and return whether that was possible: Slurm stops this run of it then.

        After a refusal it is not tried again for ten minutes.
        """
        if now_s < self._next_try_s:
            return False
        begin_s = random.uniform(*_BEGIN_S)
        try:
            self._jobs.give_up_place(begin_s=begin_s)
        except SlurmError as error:
            self._next_try_s = now_s + _REFUSED_S
            self._say(f"job {self._id}: {because}, and it cannot be requeued: {in_one_line(error)}")
            return False
        self._say(f"job {self._id}: {because}: it goes back into the queue, to start in {begin_s:.0f} s")
        return True

    def _reason_to_leave(self, own: SeenJob, wing: SeenJob, now_s: float, rest_s: float | None) -> str | None:
        if self._is_limited(wing, now_s):
            return "a limit on the number of jobs keeps its wing waiting"
        needed_s = rest_s or 0.0
        is_worth_it = now_s - self._began_s >= max(_WORTH_S, _WORTH_SHARE * needed_s)
        if is_worth_it and own.time_left_s is not None and own.time_left_s < needed_s + _MARGIN_S:
            return "its wing waits, and its own time limit leaves too little for the training"
        if now_s >= self._next_node_look_s:
            self._next_node_look_s = now_s + _NODE_LOOK_INTERVAL_S
            if self._jobs.is_node_drained():
                return f"its wing waits, and its node {self._jobs.node} is drained"
        return None

    def _is_limited(self, wing: SeenJob, now_s: float) -> bool:
        """Whether limits on jobs have kept the wing from starting for long enough."""
        if "JobsLimit" not in wing.reason and "MaxJobs" not in wing.reason:
            self._limited_since_s = None
            return False
        if self._limited_since_s is None:
            self._limited_since_s, self._limited_s = now_s, random.uniform(*_LIMITED_S)
        return now_s - self._limited_since_s >= self._limited_s

    def _pass_on_hold(self, start: Start, own: SeenJob, wing: SeenJob) -> None:
        number = start.first.job_id
        try:
            if own.is_held and not wing.is_held:
                self._jobs.hold(number)
                start.is_hold_passed_on = True
                self._say(f"job {self._id} is held, and so is its wing {number}")
            elif not own.is_held and start.is_hold_passed_on:
                self._jobs.release(number)
                start.is_hold_passed_on = False
                self._say(f"job {self._id} is released, and so is its wing {number}")
        except SlurmError as error:  # at the next look
            self._say(f"job {self._id}: its wing {number}: {in_one_line(error)}")


def in_one_line(error: SlurmError) -> str:
    """Return an error's text for a line of the job's output."""
    return " ".join(str(error).replace("sbatch: error: ", "").split())
