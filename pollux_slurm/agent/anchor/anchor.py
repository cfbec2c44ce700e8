"""The anchor: submits the wings of a training, and waits for their end.

A start of the training begins with one wing that has the owner's own request. Wings that bring processes to a
later generation are submitted when the daemon has planned it, and cancelled when it is given up.

When the processes of all wings have ended, one rule says what comes:

- all with 0: the training is over;
- one failed by itself: so does the job, with that exit code;
- else they were stopped, or a wing was lost: the next start's wing is submitted, to start no sooner than two
  minutes later, as Slurm does after a requeue. The daemon gives it a shape, and lets it start earlier.

If the anchor itself was asked to stop, its wings are, and it ends.

Where sbatch refuses the wing of a start, it is tried again for a minute, and while slurmctld does not answer,
for ten. Then the job fails: its checkpoint stays. Where a limit on jobs is the reason, the anchor goes back
into the queue instead. Where sbatch refuses a newcomer's wing, the generation is refused, and training goes
on.
"""

from __future__ import annotations

import contextlib
import queue
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pollux_slurm.agent.anchor.generation_watch import GenerationWatch
from pollux_slurm.agent.anchor.link import Link, Listener, Message
from pollux_slurm.agent.anchor.order import Starts
from pollux_slurm.agent.anchor.wing_jobs import SeenWing, WingJobs
from pollux_slurm.agent.exit_codes import STOPPED_BY_SIGTERM, STOPPED_EXIT_CODES
from pollux_slurm.agent.node.watched_processes import STOPPING, blocked_signals
from pollux_slurm.agent.submit.wing_request import WingRequest
from pollux_slurm.errors import LaunchError, SlurmError, SlurmUnavailable
from pollux_slurm.model import Allocation, JobState
from pollux_slurm.store.contract.membership import (
    GenerationRecord,
    GenerationState,
    plan_of_member,
    wing_members,
)

RESTART_WAIT_S = 120.0
_PAUSE_S = 0.1
_LOOK_INTERVAL_S, _RARE_LOOK_INTERVAL_S = 5.0, 60.0
# A wing that is over for Slurm may still be about to say how it ended.
_LAST_WORDS_S = 5.0
_MIN_TIME_LEFT_S = 60.0
# How long job limits may keep the start's wing waiting before the anchor gives up its own place. Of several
# anchors that keep each other's wings waiting, one goes first, so that the others need not.
_LIMITED_S = (40.0, 80.0)
# How long the wing of a start is submitted again.
_REFUSED_S, _UNAVAILABLE_S = 60.0, 600.0
_MAX_RETRY_PAUSE_S = 20.0
# In sbatch's words for AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit and the like.
_SUBMIT_LIMIT = re.compile(r"Submit\w*Limit|job submit limit")
_GIVEN_UP = (GenerationState.REFUSED, GenerationState.WITHDRAWN, GenerationState.FAILED)
# With a wing that is killed by a signal, nothing says how its processes ended.
_LOST = -1


@dataclass(slots=True, eq=False)
class _Wing:
    """A wing of the present start. `code` is None until its processes have ended, or it was lost."""

    job_id: str
    plan: int
    link: Link | None = None
    members: frozenset[str] = frozenset()
    code: int | None = None
    gone_since_s: float | None = None


class Anchor:
    """One anchor. `watch` is None for a training that cannot regroup: without a store or a token."""

    def __init__(
        self,
        *,
        jobs: WingJobs,
        listener: Listener,
        watch: GenerationWatch | None,
        request: WingRequest,
        starts_file: Path,
        kill_after_s: float,
        say: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs, self._listener, self._watch, self._request = jobs, listener, watch, request
        self._starts_file, self._kill_after_s, self._say = starts_file, kill_after_s, say
        self._monotonic = monotonic
        self._starts = Starts.read(starts_file)
        self._wings: dict[str, _Wing] = {}
        self._members: frozenset[str] = frozenset()
        self._records: dict[int, GenerationRecord] = {}
        # The GPUs of the wings to be submitted yet, by plan and node.
        self._lacking: dict[tuple[int, str], int] = {}
        self._next_submission_s = 0.0
        self._restart_count = 0
        self._stopped = False
        self._failure: int | None = None
        self._kill_at_s: float | None = None
        self._trains_since_s: float | None = None
        self._next_look_s = 0.0
        self._limited_since_s: float | None = None
        self._limited_s = 0.0
        # That of the start's wing. Newcomers go to the same, whatever partitions its owner allows.
        self._partition = ""

    # ---------------------------------------------------------------------------------------------- one run

    def run(self) -> int:
        """Train to the end, over as many starts as it takes, and return the exit code."""
        with blocked_signals() as (watched, _):
            try:
                # Without an answer: they end by themselves, since this anchor does not want them.
                with contextlib.suppress(SlurmError):
                    self._jobs.cancel(self._jobs.left_behind(), self._say)
                begin_s = 0.0
                while True:
                    if (left_s := self._time_left_s()) is not None and left_s < _MIN_TIME_LEFT_S:
                        self._say(f"job {self._id}: its time limit is used up: it is not started again")
                        return STOPPED_BY_SIGTERM
                    code = self._start(watched, left_s, begin_s)
                    if code is not None:
                        return code
                    begin_s = RESTART_WAIT_S
            finally:
                self._jobs.cancel([w.job_id for w in self._wings.values() if w.code is None], self._say)

    @property
    def _id(self) -> str:
        return self._jobs.anchor_id

    def _time_left_s(self) -> float | None:
        limit_s = self._request.time_limit_s
        return None if limit_s is None else limit_s - self._starts.trained_s

    def _start(self, watched: set[signal.Signals], left_s: float | None, begin_s: float) -> int | None:
        """Make one start; return the exit code, None where another one is to follow."""
        self._restart_count = self._starts.count
        self._starts = replace(self._starts, count=self._starts.count + 1)
        self._starts.write(self._starts_file)
        self._wings, self._members, self._records, self._lacking = {}, frozenset(), {}, {}
        self._failure = self._kill_at_s = self._limited_since_s = None
        if self._watch is not None:
            self._watch.begin(self._restart_count)
        first = self._submit_first(watched, left_s, begin_s)
        if first is None:
            return STOPPED_BY_SIGTERM
        self._say(f"job {self._id}: start {self._restart_count} of the training waits as job {first.job_id}")
        while not self._is_over():
            self._handle_signal(watched)
            self._handle_messages()
            self._handle_generation()
            self._handle_queue(first)
            self._handle_kill()
        return self._outcome(first)

    def _submit_first(
        self, watched: set[signal.Signals], left_s: float | None, begin_s: float
    ) -> _Wing | None:
        """Submit the wing that a start begins with; None where the anchor was stopped meanwhile.

        Raises `LaunchError` where sbatch goes on refusing it.
        """
        began_s, pause_s, said = self._monotonic(), 1.0, ""
        while True:
            try:
                return self._submit(self._request.start_options(), plan=0, left_s=left_s, begin_s=begin_s)
            except SlurmError as error:
                text, limit_s = _in_one_line(error), _REFUSED_S
                if isinstance(error, SlurmUnavailable):
                    limit_s = _UNAVAILABLE_S
            if self._monotonic() - began_s >= limit_s:
                if _SUBMIT_LIMIT.search(text):
                    self._give_up_place("a limit on the number of jobs keeps its wing out of the queue")
                    return None
                raise LaunchError(
                    f"job {self._id}: no wing of it can be submitted on this node, so that it cannot train: "
                    f"{text}; where nodes may not submit jobs, use pollux sbatch --no-in-place"
                )
            if text != said:
                self._say(f"job {self._id}: its wing cannot be submitted, and is tried again: {text}")
                said = text
            if self._was_stopped_within(pause_s, watched):
                return None
            pause_s = min(2 * pause_s, _MAX_RETRY_PAUSE_S)

    def _was_stopped_within(self, wait_s: float, watched: set[signal.Signals]) -> bool:
        until_s = self._monotonic() + wait_s
        while (left_s := until_s - self._monotonic()) > 0:
            found = signal.sigtimedwait(watched, min(left_s, _PAUSE_S))
            if found is not None and found.si_signo in STOPPING:
                return True
        return False

    def _is_over(self) -> bool:
        """Whether the processes of all wings have ended, or none can begin any more."""
        first = next(iter(self._wings.values()))
        if first.code is None and first.link is None:
            return False
        return all(wing.code is not None for wing in self._wings.values() if wing.link is not None)

    def _outcome(self, first: _Wing) -> int | None:
        if self._trains_since_s is not None:
            trained_s = self._starts.trained_s + self._monotonic() - self._trains_since_s
            self._trains_since_s = None
            self._starts = replace(self._starts, trained_s=trained_s)
            self._starts.write(self._starts_file)
        waiting = [wing for wing in self._wings.values() if wing.code is None]
        self._jobs.cancel([wing.job_id for wing in waiting], self._say)
        for wing in waiting:
            wing.code = _LOST
        needed = [wing for wing in self._wings.values() if wing.members & self._members] or [first]
        codes = [wing.code for wing in needed]
        if self._failure is not None:
            return self._failure
        if self._stopped:
            return STOPPED_BY_SIGTERM if any(codes) else 0
        # Where one was lost at the very end, the next start goes on from the last checkpoint, and ends.
        if first.members and not any(codes):
            return 0
        self._say(f"job {self._id}: start {self._restart_count} of the training was stopped")
        return None

    # ------------------------------------------------------------------------------------------- each moment

    def _handle_signal(self, watched: set[signal.Signals]) -> None:
        found = signal.sigtimedwait(watched, _PAUSE_S)
        if found is None or found.si_signo == signal.SIGCHLD:
            return
        if found.si_signo in STOPPING:
            self._stopped = True
            waiting = [wing for wing in self._wings.values() if wing.link is None and wing.code is None]
            self._jobs.cancel([wing.job_id for wing in waiting], self._say)
            for wing in waiting:
                wing.code = _LOST
        self._tell_all({"signal": int(found.si_signo)})

    def _tell_all(self, message: Message) -> None:
        for wing in self._wings.values():
            if wing.link is not None and wing.code is None:
                wing.link.send(message)

    def _handle_messages(self) -> None:
        while True:
            try:
                link, message = self._listener.messages.get_nowait()
            except queue.Empty:
                return
            wing = next((one for one in self._wings.values() if one.link is link), None)
            if message is not None and "wing" in message:
                self._welcome(link, message)
            elif wing is None:
                continue
            elif message is None and wing.code is None:
                self._end(wing, _LOST)
            elif message is not None and isinstance(message.get("exit"), int) and wing.code is None:
                self._end(wing, int(message["exit"]))

    def _welcome(self, link: Link, message: Message) -> None:
        """Tell a wing which processes it starts, or that it is not wanted."""
        wing = self._wings.get(str(message["wing"]))
        gpus = message.get("processes")
        if wing is None or wing.link is not None or wing.code is not None or not isinstance(gpus, dict):
            link.send({"go": None})
            return
        go = self._go(wing, Allocation.of({str(node): int(count) for node, count in gpus.items()}))
        if go is not None:
            wing.link = link
            if wing.plan == 0:
                self._partition = str(message.get("partition") or "")
        link.send({"go": go})

    def _go(self, wing: _Wing, processes: Allocation) -> Mapping[str, Any] | None:
        if self._stopped or self._failure is not None:
            return None
        own = wing_members(self._restart_count, wing.plan, processes)
        wing.members = frozenset(member.id for member in own)
        if wing.plan == 0:
            self._members = wing.members
            self._trains_since_s = self._monotonic()
            members, joins = own, None
            self._say(
                f"job {self._id}: start {self._restart_count} trains on {processes} (job {wing.job_id})"
            )
        else:
            record = self._records[wing.plan]
            members, joins = record.members, record.number
            named = {member.id for member in members}
            if not wing.members <= named:
                self._say(f"job {self._id}: its wing {wing.job_id} has {processes}, which is not the plan")
                return None
        return {
            "restart_count": self._restart_count,
            "members": [[member.id, member.node_name] for member in members] if self._watch else [],
            "own": [member.id for member in own],
            "joins": joins,
        }

    def _end(self, wing: _Wing, code: int) -> None:
        """Note that a wing's processes have ended. Where the training needs them, the others end, too."""
        wing.code = code
        if code == 0 or self._stopped or self._failure is not None:
            return
        if self._watch is not None and wing.plan in self._records | {0: None} and len(self._wings) > 1:
            # It may have left with any exit code; the store knows.
            self._watch.read_now(timeout_s=3.0)
            self._handle_generation()
        if not wing.members & self._members:
            return
        if code != _LOST and code not in STOPPED_EXIT_CODES:
            self._failure = code
        self._tell_all({"signal": int(signal.SIGTERM)})
        self._kill_at_s = self._monotonic() + self._kill_after_s

    def _handle_kill(self) -> None:
        """Cancel the wings that do not end after another one has failed or was lost."""
        if self._kill_at_s is None or self._monotonic() < self._kill_at_s:
            return
        self._kill_at_s = self._monotonic() + self._kill_after_s
        self._jobs.cancel([wing.job_id for wing in self._wings.values() if wing.code is None], self._say)

    def _handle_generation(self) -> None:
        record = None if self._watch is None else self._watch.latest
        if record is None or record.restart_count != self._restart_count or self._stopped:
            return
        plans = {plan_of_member(member.id) for member in record.members}
        if record.state is GenerationState.REGROUPED:
            self._members = frozenset(member.id for member in record.members)
        elif record.state in _GIVEN_UP:
            left = [w for w in self._wings.values() if w.plan in plans and w.plan != 0 and w.code is None]
            self._lacking.clear()
            unused = [wing for wing in left if not self._may_be_used(wing)]
            self._jobs.cancel([wing.job_id for wing in unused], self._say)
            for wing in unused:
                wing.code = _LOST
        elif record.state is GenerationState.PLANNED:
            for plan in plans - self._records.keys() - {0}:
                self._records[plan] = record
                own = [one.node_name for one in record.members if plan_of_member(one.id) == plan]
                self._lacking |= {(plan, node): gpus for node, gpus in Counter(own).items()}
            self._submit_newcomers(record)

    def _may_be_used(self, wing: _Wing) -> bool:
        return bool(wing.members & self._members)

    def _submit_newcomers(self, record: GenerationRecord) -> None:
        """Submit the wings that a planned generation lacks; again later where slurmctld does not answer."""
        now = self._monotonic()
        if not self._lacking or now < self._next_submission_s:
            return
        left_s = self._time_left_s()
        if left_s is not None and self._trains_since_s is not None:
            left_s -= now - self._trains_since_s
        partition = [f"--partition={self._partition}"] if self._partition else []
        for (plan, node), gpus in list(self._lacking.items()):
            request = [*self._request.newcomer_options(node, gpus), *partition]
            try:
                wing = self._submit(request, plan=plan, left_s=left_s)
            except SlurmUnavailable as error:
                self._next_submission_s = now + _LOOK_INTERVAL_S
                self._say(f"job {self._id}: no wing on {node} yet: {_in_one_line(error)}")
                return
            except SlurmError as error:
                # Its other wings are cancelled once the store has the refusal.
                text = f"no wing on {node}: {_in_one_line(error)}"
                self._say(f"job {self._id}: {text}")
                self._lacking.clear()
                if self._watch is not None:
                    self._watch.refuse(record, text)
                return
            del self._lacking[plan, node]
            self._say(f"job {self._id}: {gpus} more processes on {node} wait as job {wing.job_id}")

    def _submit(self, request: list[str], *, plan: int, left_s: float | None, begin_s: float = 0.0) -> _Wing:
        number = self._jobs.submit(
            request,
            restart_count=self._restart_count,
            plan=plan,
            number=len(self._wings),
            time_limit_s=left_s,
            begin_s=begin_s,
        )
        self._wings[number] = wing = _Wing(number, plan)
        self._next_look_s = self._monotonic() + _LOOK_INTERVAL_S
        return wing

    def _handle_queue(self, first: _Wing) -> None:
        """Look at the wings in the queue: each may be over there.

        One that has not come yet may also be kept from starting by a limit. The processes of one that has
        come may go on though it is over for Slurm: so it is where a node's slurmd is lost.
        """
        now = self._monotonic()
        if now < self._next_look_s:
            return
        left = [wing for wing in self._wings.values() if wing.code is None]
        try:
            seen = self._jobs.look(wing.job_id for wing in left)
        except SlurmError:
            self._next_look_s = now + _LOOK_INTERVAL_S
            return  # slurmctld is away: nothing is known
        for wing in left:
            found = seen.get(wing.job_id)
            if found is not None and not found.state.is_over:
                wing.gone_since_s = None
            elif wing.gone_since_s is None:
                wing.gone_since_s = now
            elif now - wing.gone_since_s >= _LAST_WORDS_S:
                self._lose(wing, "gone" if found is None else found.state.value)
        is_urgent = any(w.code is None and (w.link is None or w.gone_since_s is not None) for w in left)
        self._next_look_s = now + (_LOOK_INTERVAL_S if is_urgent else _RARE_LOOK_INTERVAL_S)
        self._give_up_place_if_limited(seen.get(first.job_id))

    def _lose(self, wing: _Wing, state: str) -> None:
        if wing.link is None:
            self._say(f"job {self._id}: its wing {wing.job_id} is {state} before its processes started")
            wing.code = _LOST
            return
        self._say(
            f"job {self._id}: its wing {wing.job_id} is {state} in the queue, and its processes are not"
        )
        wing.link.send({"signal": int(signal.SIGTERM)})
        self._end(wing, _LOST)

    def _give_up_place_if_limited(self, seen: SeenWing | None) -> None:
        """Requeue the anchor where limits on jobs keep its wing from starting: another's wing may need it."""
        is_limited = (
            seen is not None
            and seen.state is JobState.PENDING
            and ("JobsLimit" in seen.reason or "MaxJobs" in seen.reason)
        )
        now = self._monotonic()
        if not is_limited:
            self._limited_since_s = None
        elif self._limited_since_s is None:
            self._limited_since_s, self._limited_s = now, random.uniform(*_LIMITED_S)
        elif now - self._limited_since_s >= self._limited_s:
            self._limited_since_s = None
            self._jobs.cancel(list(self._wings), self._say)
            self._give_up_place("a limit on the number of jobs keeps its wing waiting")

    def _give_up_place(self, because: str) -> None:
        """Go back into the queue: Slurm stops this process, and starts the anchor again later."""
        begin_s = random.uniform(60.0, 180.0)
        self._say(f"job {self._id}: {because}: it goes back into the queue, to start in {begin_s:.0f} s")
        with contextlib.suppress(SlurmError):
            self._jobs.give_up_place(begin_s=begin_s)


def _in_one_line(error: SlurmError) -> str:
    return " ".join(str(error).replace("sbatch: error: ", "").split())
