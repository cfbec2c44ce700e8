"""The anchor: submits the wings of a training, and waits for their end.

A start of the training begins with one wing that has the owner's own request. Wings that bring processes to a
later generation are submitted when the daemon has planned it (`newcomers`).

When the processes of all wings have ended, one rule says what comes:

- all with 0: the training is over, and so are newcomers that wait to join it;
- one failed by itself: so does the job, with that exit code;
- else they were stopped, or a wing was lost: the next start's wing is submitted, to start no sooner than two
  minutes later, as Slurm does after a requeue. The daemon gives it a shape, and lets it start earlier. There
  is none once the training's time is used up.

If the anchor itself was asked to stop, its wings are, and it ends. So it does where it has lost or given up
its place (`place`), and before another start where an upgrade has replaced the code that it runs.

The job fails, too, where its wings cannot be submitted (`submission`), or those of three starts in a row have
failed before their processes started. Where sbatch refuses a newcomer's wing, the generation is refused, and
training goes on.
"""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pollux_slurm.agent.exit_codes import STOPPED_BY_SIGTERM, STOPPED_EXIT_CODES
from pollux_slurm.errors import LaunchError, SlurmError, SlurmUnavailable
from pollux_slurm.launch.anchor.generation_watch import GenerationWatch
from pollux_slurm.launch.anchor.link import Link, LinkListener, Message
from pollux_slurm.launch.anchor.newcomers import Newcomers
from pollux_slurm.launch.anchor.place import Place, in_one_line
from pollux_slurm.launch.anchor.seen_job import SeenJob
from pollux_slurm.launch.anchor.start import LOST, Start, Wing
from pollux_slurm.launch.anchor.submission import Submission
from pollux_slurm.launch.anchor.training_time import TrainingTime
from pollux_slurm.launch.anchor.wing_jobs import WingJobs
from pollux_slurm.launch.node.signal_wait import wait_for_signal
from pollux_slurm.launch.node.watched_processes import STOPPING, blocked_signals
from pollux_slurm.launch.submit.wing_request import WingRequest
from pollux_slurm.model import Allocation
from pollux_slurm.resources import CODE_REPLACED
from pollux_slurm.store.contract.membership import GenerationState, wing_members

RESTART_WAIT_S = 120.0
_PAUSE_S = 0.1
_LOOK_INTERVAL_S, _RARE_LOOK_INTERVAL_S = 5.0, 60.0
# A wing that is over for Slurm may still be about to say how it ended.
_LAST_WORDS_S = 5.0
_MAX_FAILED_LAUNCHES = 3


class Anchor:
    """One anchor. `watch` is None for a training that cannot regroup: without a store or a token.

    Its first start begins `begin_s` from now. `is_replaced` tells whether other code is on disk than it runs.
    """

    def __init__(
        self,
        *,
        jobs: WingJobs,
        listener: LinkListener,
        watch: GenerationWatch | None,
        request: WingRequest,
        starts_file: Path,
        kill_after_s: float,
        say: Callable[[str], None],
        begin_s: float = 0.0,
        is_replaced: Callable[[], bool] = lambda: False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._begin_s, self._is_replaced = begin_s, is_replaced
        self._jobs, self._listener, self._watch, self._request = jobs, listener, watch, request
        self._kill_after_s, self._say, self._monotonic = kill_after_s, say, monotonic
        self._id = jobs.anchor_id
        self._time = TrainingTime(starts_file, limit_s=request.time_limit_s, monotonic=monotonic)
        self._place = Place(jobs, say, began_s=monotonic())
        self._submission = Submission(jobs, self._place, say, monotonic)
        self._start = Start(self._time.num_starts)
        self._newcomers = Newcomers(self._start)
        self._stopped = False
        self._failed_launches: list[str] = []
        self._next_submission_s = self._next_look_s = 0.0
        # That of the start's wing. Newcomers go to the same, whatever partitions its owner allows.
        self._partition = ""

    # ---------------------------------------------------------------------------------------------- one run

    def run(self) -> int | None:
        """Train to the end, over as many starts as it takes, and return the exit code.

        None where the code on disk is to make the next start, `RESTART_WAIT_S` from now.
        """
        with blocked_signals() as (watched, _):
            try:
                begin_s = self._begin_s
                while not self._time.is_used_up():
                    code = self._make_start(watched, begin_s)
                    if code is not None:
                        return code
                    begin_s = RESTART_WAIT_S
                    if self._is_replaced():
                        self._say(f"job {self._id}: pollux_slurm was upgraded: the new release goes on")
                        return None
                self._say(f"job {self._id}: its time limit is used up: it is not started again")
                return STOPPED_BY_SIGTERM
            finally:
                self._cancel(self._start.left)

    def _make_start(self, watched: set[signal.Signals], begin_s: float) -> int | None:
        """Make one start; return the exit code, None where another one is to follow."""
        self._start = Start(self._time.num_starts)
        self._newcomers = Newcomers(self._start)
        self._time.count_start()
        if self._watch is not None:
            self._watch.begin(self._start.restart_count)
        first = self._submission.submit_first(
            self._start, self._request.start_options(), watched, rest_s=self._time.rest_s(), begin_s=begin_s
        )
        if first is None:
            return STOPPED_BY_SIGTERM
        self._next_look_s = self._monotonic()
        self._say(f"job {self._id}: start {self._start.number} of the training waits as job {first.job_id}")
        while not self._start.is_over:
            self._handle_signal(watched)
            self._handle_messages()
            self._handle_generation()
            self._handle_queue()
            self._handle_kill()
        return self._outcome()

    def _outcome(self) -> int | None:
        start = self._start
        self._time.end()
        self._drop(start.left)
        if start.failure is not None:
            return start.failure
        if self._stopped:
            return STOPPED_BY_SIGTERM if any(start.codes) else 0
        # Where one was lost at the very end, the next start goes on from the last checkpoint, and ends.
        if start.first.members and not any(start.codes):
            return 0
        if len(self._failed_launches) >= _MAX_FAILED_LAUNCHES:
            raise LaunchError(
                f"job {self._id}: its wings {', '.join(self._failed_launches)} failed before their processes "
                "started: see the lines before this one, and whether this Python and the job's directory are "
                "on all nodes; then scontrol requeue it"
            )
        self._say(f"job {self._id}: start {start.number} of the training was stopped")
        return None

    def _cancel(self, wings: Iterable[Wing]) -> None:
        self._jobs.cancel([wing.job_id for wing in wings], self._say)

    def _drop(self, wings: Iterable[Wing]) -> None:
        """Cancel wings, and wait for them no more."""
        dropped = list(wings)
        self._cancel(dropped)
        for wing in dropped:
            wing.code = LOST

    # ------------------------------------------------------------------------------------------- each moment

    def _handle_signal(self, watched: set[signal.Signals]) -> None:
        found = wait_for_signal(watched, _PAUSE_S)
        if found is None or found == signal.SIGCHLD:
            return
        if found in STOPPING:
            self._stop(found)
        else:
            self._start.tell_all({"signal": int(found)})

    def _stop(self, number: int = signal.SIGTERM) -> None:
        """Make no more starts, and let the wings end."""
        self._stopped = True
        self._drop(wing for wing in self._start.left if not wing.has_come)
        self._start.tell_all({"signal": int(number)})

    def _handle_messages(self) -> None:
        while True:
            try:
                link, message = self._listener.messages.get_nowait()
            except queue.Empty:
                return
            wing = self._start.of_link(link)
            if message is not None and "wing" in message:
                self._welcome(link, message)
            elif wing is None or wing.code is not None:
                continue
            elif message is None:
                self._end(wing, LOST)
            elif isinstance(message.get("exit"), int):
                self._end(wing, int(message["exit"]))

    def _welcome(self, link: Link, message: Message) -> None:
        """Tell a wing which processes it starts, or that it is not wanted."""
        wing = self._start.wings.get(str(message["wing"]))
        gpus = message.get("processes")
        if wing is None or wing.has_come or wing.code is not None or not isinstance(gpus, dict):
            link.send({"go": None})
            return
        go = self._go(wing, Allocation.of({str(node): int(count) for node, count in gpus.items()}))
        if go is not None:
            wing.link = link
            if wing.plan == 0:
                self._partition = str(message.get("partition") or "")
                self._failed_launches.clear()
        link.send({"go": go})

    def _go(self, wing: Wing, processes: Allocation) -> Mapping[str, Any] | None:
        start = self._start
        if self._stopped or start.failure is not None:
            return None
        own = wing_members(start.restart_count, wing.plan, processes)
        wing.members = frozenset(member.id for member in own)
        if wing.plan == 0:
            start.members = wing.members
            self._time.begin()
            members, joins = own, None
            self._say(f"job {self._id}: start {start.number} trains on {processes} (job {wing.job_id})")
        else:
            record = start.records[wing.plan]
            members, joins = record.members, record.number
            if not wing.members <= {member.id for member in members}:
                self._say(f"job {self._id}: its wing {wing.job_id} has {processes}, which is not the plan")
                return None
        return {
            "restart_count": start.restart_count,
            "members": [[member.id, member.node_name] for member in members] if self._watch else [],
            "own": [member.id for member in own],
            "joins": joins,
        }

    def _end(self, wing: Wing, code: int) -> None:
        """Note that a wing's processes have ended. Where the training needs them, the others end, too."""
        start = self._start
        wing.code = code
        if self._stopped or start.failure is not None:
            return
        is_known = self._watch is None
        if self._watch is not None and len(start.wings) > 1:
            # It may have left, with any exit code; the store knows.
            is_known = self._watch.read_now(timeout_s=3.0)
            self._handle_generation()
        if code == 0:
            if is_known and self._is_training_over():
                joining = ", ".join(other.job_id for other in start.left if start.is_joining(other))
                if joining and start.kill_at_s is None:
                    # Slurm logs their end as if something had failed.
                    self._say(f"job {self._id}: the training is over; job {joining}, which was to join, ends")
                self._stop_rest()
            return
        if not start.needs(wing):
            return
        if code != LOST and code not in STOPPED_EXIT_CODES:
            start.failure = code
        self._stop_rest()

    def _is_training_over(self) -> bool:
        """Whether all processes that train have ended with 0, and none that has come will join them."""
        record = None if self._watch is None else self._watch.latest
        if record is not None and record.state is GenerationState.COMMITTED:
            return False
        return bool(self._start.members) and all(code == 0 for code in self._start.codes)

    def _stop_rest(self) -> None:
        self._start.tell_all({"signal": int(signal.SIGTERM)})
        self._start.kill_at_s = self._monotonic() + self._kill_after_s

    def _handle_kill(self) -> None:
        """Cancel the wings that do not end after another one has failed or was lost."""
        at_s, now = self._start.kill_at_s, self._monotonic()
        if at_s is not None and now >= at_s:
            self._start.kill_at_s = now + self._kill_after_s
            self._cancel(self._start.left)

    def _handle_generation(self) -> None:
        record = None if self._watch is None else self._watch.latest
        if (
            self._watch is None
            or record is None
            or record.restart_count != self._start.restart_count
            or self._stopped
        ):
            return
        now = self._monotonic()
        self._newcomers.note(record, now)
        self._drop(self._newcomers.unwanted(record))
        refusal = self._submit_newcomers(now) or self._newcomers.late(record, now)
        if refusal is not None:
            # It cannot be committed now. Wings that have come are cancelled once the store has the refusal.
            self._say(f"job {self._id}: {refusal}")
            self._drop(wing for wing in self._start.left if wing.plan != 0 and not wing.has_come)
            self._newcomers.note_refusal()
            self._watch.refuse(record, refusal)

    def _submit_newcomers(self, now: float) -> str | None:
        """Submit the wings that a plan lacks; return why it cannot be.

        They are submitted again later where slurmctld does not answer.
        """
        if now < self._next_submission_s:
            return None
        if self._newcomers.lacking and self._is_replaced():
            return CODE_REPLACED
        partition = [f"--partition={self._partition}"] if self._partition else []
        for (plan, node), gpus in list(self._newcomers.lacking.items()):
            request = [*self._request.newcomer_options(node, gpus), *partition]
            try:
                wing = self._submission.submit(self._start, request, plan=plan, rest_s=self._time.rest_s())
            except SlurmUnavailable as error:
                self._next_submission_s = now + _LOOK_INTERVAL_S
                self._say(f"job {self._id}: no wing on {node} yet: {in_one_line(error)}")
                return None
            except SlurmError as error:
                return f"no wing on {node}: {in_one_line(error)}"
            self._next_look_s = now
            del self._newcomers.lacking[plan, node]
            self._say(f"job {self._id}: {gpus} more processes on {node} wait as job {wing.job_id}")
        return None

    # ------------------------------------------------------------------------------------ looks at the queue

    def _handle_queue(self) -> None:
        """Look at the anchor and its wings in the queue: each may be over there.

        The processes of a wing that has come may go on though it is over for Slurm: so it is where a node's
        slurmd is lost.
        """
        now = self._monotonic()
        if now < self._next_look_s:
            return
        self._next_look_s = now + _LOOK_INTERVAL_S
        left = self._start.left
        try:
            seen = self._jobs.look(wing.job_id for wing in left)
        except SlurmError:
            return  # slurmctld is away: nothing is known
        for wing in left:
            found = seen.get(wing.job_id)
            if found is not None and not found.state.is_over:
                wing.gone_since_s = None
            elif wing.gone_since_s is None:
                wing.gone_since_s = now
            elif now - wing.gone_since_s >= _LAST_WORDS_S:
                self._lose(wing, found)
        if not any(w.code is None and (not w.has_come or w.gone_since_s is not None) for w in left):
            self._next_look_s = now + _RARE_LOOK_INTERVAL_S
        if not self._stopped and self._place.is_lost(self._start, seen, now, rest_s=self._time.rest_s()):
            # Another run of this anchor may count starts and time already.
            self._time.forget_start()
            self._stop()

    def _lose(self, wing: Wing, found: SeenJob | None) -> None:
        state = "gone" if found is None else found.state.value
        if wing.link is not None:
            self._say(
                f"job {self._id}: its wing {wing.job_id} is {state} in the queue, and its processes are not"
            )
            wing.link.send({"signal": int(signal.SIGTERM)})
            self._end(wing, LOST)
            return
        self._say(f"job {self._id}: its wing {wing.job_id} is {state} before its processes started")
        wing.code = LOST
        if wing.plan == 0 and found is not None and found.has_failed:
            self._failed_launches.append(wing.job_id)
