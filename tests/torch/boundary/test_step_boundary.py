"""What ranks do between two steps: together or not at all, once for each request."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pollux_slurm.agent.checkpoints.checkpoint_interval import CheckpointInterval
from pollux_slurm.errors import SupersededRunError
from pollux_slurm.model import BatchChoice, JobWarning
from pollux_slurm.store.contract.interface import CheckpointConfirmation, RunPhase
from pollux_slurm.torch.boundary.epoch_end_wait import EpochEndWait
from pollux_slurm.torch.boundary.sigterm import StopFlag, TrainingStopped
from pollux_slurm.torch.boundary.step_boundary import ModelStep, StepBoundary
from pollux_slurm.torch.checkpoint.checkpoint_file import WriteResult
from pollux_slurm.torch.coordination.side_channel import SideChannel
from pollux_slurm.torch.gradients.step_norms import NormSums
from tests.waiting import wait_until

pytestmark = pytest.mark.torch


@dataclass
class Wire:
    """The exchanged values: one vector of each rank for each exchange, and rank 0's numbers."""

    rounds: list[list[list[float]]] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)


class TurnBasedChannel:
    """A `SideChannel` for ranks that take turns in one thread, rank 0 first, crossing by crossing."""

    def __init__(self, wire: Wire, rank: int, world_size: int) -> None:
        self.wire, self.rank, self.world_size = wire, rank, world_size
        self._sent: list[Any] = []
        self._num_heard = 0

    def exchange(self, values: Sequence[float], context: Any) -> Any:
        before = len(self._sent) - 1
        self._sent.append(context)
        if len(self.wire.rounds) < len(self._sent):
            self.wire.rounds.append([])
        self.wire.rounds[len(self._sent) - 1].append(list(values))
        if before < 0:
            return None
        vectors = self.wire.rounds[before]
        assert len(vectors) == self.world_size
        return [sum(each) for each in zip(*vectors, strict=True)], self._sent[before]

    def broadcast_number(self, value: float) -> float:
        if self.rank == 0:
            self.wire.numbers.append(value)
        self._num_heard += 1
        return self.wire.numbers[self._num_heard - 1]


class Disk:
    """A checkpointer that counts."""

    is_enabled, is_writing = True, False

    def __init__(self) -> None:
        self.done: list[str] = []
        self.error: str | None = None
        self.is_full = self.superseded = False

    def write(self) -> WriteResult:
        if self.superseded:
            raise SupersededRunError("run 1 of this job has taken over from run 0")
        self.done.append("written")
        return WriteResult(size_bytes=9, error=self.error, is_disk_full=self.is_full)

    def write_in_background(self) -> None:
        self.done.append("begun")

    def take_write_result(self) -> None:
        return None

    def copy_states(self) -> Callable[[], WriteResult]:
        self.done.append("copied")
        return self.write


class Reporting:
    """Reporter and report builder of rank 0: the open request, and what was reported."""

    def __init__(self) -> None:
        self.checkpoint_request: int | None = None
        self.superseded = False
        self.phase, self.first_step_s = RunPhase.TRAINING, 1.0
        self.confirmed: list[CheckpointConfirmation] = []
        self.phases: list[RunPhase] = []
        self.stopped: list[bool] = []
        self.warnings: list[JobWarning] = []

    def warn(self, warning: JobWarning) -> None:
        self.warnings.append(warning)

    def set_phase(self, phase: RunPhase) -> None:
        self.phase = phase
        self.phases.append(phase)

    def confirm(self, confirmation: CheckpointConfirmation) -> None:
        self.confirmed.append(confirmation)

    def is_confirmed(self, request_id: int) -> bool:
        return any(one.request_id == request_id for one in self.confirmed)

    def withdraw_confirmation(self) -> None: ...

    def log_stopped(self, by: str, *, is_saved: bool) -> None:
        self.stopped.append(is_saved)

    def report_soon(self) -> None: ...

    def close(self, *, timeout_s: float) -> None: ...


class Job:
    """Boundaries of as many ranks; `pause` is the time that passes while they wait."""

    def __init__(
        self,
        num_ranks: int,
        *,
        checkpoint_interval: CheckpointInterval | None = None,
        epoch_end_wait_s: float = 0.0,
    ) -> None:
        self.now, self.num_pauses = 0.0, 0
        self.reporting, self.disk = Reporting(), Disk()
        self.while_waiting: Callable[[], None] = lambda: None
        self.wire = Wire()
        self.epoch_end = EpochEndWait(wait_s=epoch_end_wait_s, monotonic=lambda: self.now)
        self.ranks = [
            StepBoundary(
                side_channel=self._side_channel(self.wire, rank, num_ranks),
                checkpointer=self.disk if rank == 0 else Disk(),  # type: ignore[arg-type]
                stop=StopFlag(),
                reporter=self.reporting if rank == 0 else None,  # type: ignore[arg-type]
                report_builder=self.reporting if rank == 0 else None,  # type: ignore[arg-type]
                checkpoint_interval=checkpoint_interval,
                epoch_end=self.epoch_end,
                max_wait_s=600.0,
                pause=self._pause,
                monotonic=lambda: self.now,
            )
            for rank in range(num_ranks)
        ]

    @staticmethod
    def _side_channel(wire: Wire, rank: int, num_ranks: int) -> Any:
        if num_ranks == 1:
            return SideChannel(rank=0, world_size=1, group=None)
        return TurnBasedChannel(wire, rank, num_ranks)

    def _pause(self, duration_s: float) -> None:
        self.now += duration_s
        self.num_pauses += 1
        self.while_waiting()

    def cross(self, *, proposal: BatchChoice | None = None) -> list[Any]:
        """Let every rank cross once; return each one's result, or the type of its error."""
        outcomes: list[Any] = []
        for rank, boundary in enumerate(self.ranks):
            try:
                outcomes.append(boundary.cross((), proposal=proposal if rank == 0 else None, wait=False))
            except (TrainingStopped, SupersededRunError) as error:
                outcomes.append(type(error))
        return outcomes


UNCHANGED = (None, False)


def test_that_sigterm_on_one_rank_stops_all_at_the_next_boundary() -> None:
    job = Job(3)
    assert job.cross() == [UNCHANGED] * 3
    job.ranks[2].stop.is_set = True
    assert job.cross() == [UNCHANGED] * 3
    assert job.cross() == [TrainingStopped] * 3
    assert job.disk.done == ["written"]


def test_that_a_superseded_run_that_gets_sigterm_ends_by_the_error_of_its_checkpoint() -> None:
    """Not by the signal, which would end it without a message."""
    seen: list[int] = []
    job = Job(1)
    job.disk.superseded = True
    before = signal.signal(signal.SIGTERM, lambda number, _frame: seen.append(number))
    try:
        (rank,) = job.ranks
        rank.stop.install()
        signal.raise_signal(signal.SIGTERM)
        assert job.cross() == [SupersededRunError]
        rank.stop.leave_training()
        rank.stop.remove()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == []


def test_that_all_ranks_use_a_proposed_batch_from_the_same_boundary_on() -> None:
    job = Job(3)
    choice = BatchChoice(global_batch_size=100, atomic_batch_size=17, accumulation_steps=1)
    assert job.cross(proposal=choice) == [UNCHANGED] * 3
    assert job.cross() == [(choice, False)] * 3
    assert job.cross() == [UNCHANGED] * 3


def test_that_a_request_is_answered_once_and_training_goes_on_when_it_is_withdrawn() -> None:
    job = Job(2)
    job.reporting.checkpoint_request = 5

    def withdraw() -> None:
        if job.num_pauses == 20:
            job.reporting.checkpoint_request = None

    job.while_waiting = withdraw
    assert job.cross() == [UNCHANGED] * 2
    assert job.cross() == [(None, True)] * 2
    # 2 s until it was withdrawn, 3 s of grace, in which Slurm would have stopped the ranks; each pauses.
    assert job.now == pytest.approx(2 * 5.0, abs=0.5)
    assert [one.request_id for one in job.reporting.confirmed] == [5]
    assert job.reporting.phases == [RunPhase.WAITING, RunPhase.TRAINING]
    assert [job.cross() for _ in range(3)] == [[UNCHANGED] * 2] * 3
    assert job.disk.done == ["written"]
    job.reporting.checkpoint_request, job.num_pauses = 6, 0
    job.cross()
    job.cross()
    assert [one.request_id for one in job.reporting.confirmed] == [5, 6]


def test_that_ranks_wait_for_a_bounded_time() -> None:
    job = Job(1)
    job.reporting.checkpoint_request = 5
    # With one rank an exchange answers at once.
    assert job.cross() == [(None, True)]
    assert job.now == pytest.approx(600.0, abs=1.0)


def test_that_ranks_that_wait_are_stopped_without_another_checkpoint() -> None:
    job = Job(1)
    job.reporting.checkpoint_request = 5
    job.while_waiting = lambda: setattr(job.ranks[0].stop, "is_set", True)
    assert job.cross() == [TrainingStopped]
    assert job.disk.done == ["written"]


@pytest.mark.parametrize("is_stopped", [True, False])
def test_that_a_request_answered_between_loops_is_waited_for_before_another_step(is_stopped: bool) -> None:
    job = Job(1)
    (boundary,) = job.ranks
    boundary.cross((), proposal=None, wait=True, may_copy=True)
    assert boundary.has_copy
    job.reporting.checkpoint_request = 5
    wait_until(lambda: job.reporting.confirmed, timeout_s=120, what="the confirmation")
    assert job.reporting.phase is RunPhase.WAITING

    def go_on() -> None:
        boundary.stop.is_set = is_stopped
        job.reporting.checkpoint_request = None

    job.while_waiting = go_on
    assert job.cross() == ([TrainingStopped] if is_stopped else [(None, True)])
    # Not written or confirmed again: nothing was trained since.
    assert job.disk.done == ["copied", "written"]
    assert len(job.reporting.confirmed) == 1
    if not is_stopped:
        assert job.reporting.phase is RunPhase.TRAINING
        assert job.now == pytest.approx(3.0, abs=0.5)
        assert job.cross() == [UNCHANGED]


def test_that_a_failed_write_is_not_confirmed_and_tried_again_later() -> None:
    job = Job(2)
    job.disk.error = "no space left"
    for boundary in job.ranks[1:]:
        boundary.checkpointer.error = "no space left"  # type: ignore[attr-defined]
    job.reporting.checkpoint_request = 5
    job.cross()
    assert job.cross() == [(None, True)] * 2
    assert [job.cross() for _ in range(3)] == [[UNCHANGED] * 2] * 3
    assert (job.disk.done, job.reporting.confirmed, job.reporting.phases) == (["written"], [], [])
    job.now += 11.0
    job.cross()
    job.cross()
    assert job.disk.done == ["written"] * 2


def test_that_a_full_disk_is_a_warning_to_the_owner() -> None:
    job = Job(1)
    for request, warnings in ((5, []), (6, [JobWarning.DISK_FULL])):
        job.disk.is_full = bool(warnings)
        job.reporting.checkpoint_request = request
        job.cross()
        job.cross()
        assert job.reporting.warnings == warnings
    assert [one.request_id for one in job.reporting.confirmed] == [5, 6]


def test_that_a_superseded_run_stops_on_all_ranks_and_writes_nothing() -> None:
    job = Job(2)
    job.reporting.superseded = True
    job.cross()
    assert job.cross() == [SupersededRunError] * 2
    assert job.disk.done == []


def test_that_periodic_checkpoints_come_when_they_are_due_on_all_ranks() -> None:
    job = Job(2, checkpoint_interval=CheckpointInterval(mtbf_s=86400.0, fixed_s=10.0))
    acted = []
    for _ in range(12):
        job.now += 2.0
        acted.append(job.cross())
    assert [index for index, outcome in enumerate(acted) if outcome != [UNCHANGED] * 2] == [5, 11]
    assert job.disk.done == ["begun"] * 2


def test_that_norms_are_added_over_the_ranks_and_the_mean_is_one_ranks() -> None:
    job, absorbed = Job(2), []
    for boundary in job.ranks:
        sums = NormSums(parts_sum=(1.0, 2.0), mean_sqr=(10.0, 20.0), num_examples=8, num_parts=2)
        boundary.cross((ModelStep(sums=sums, update_noise=absorbed.append),), proposal=None, wait=False)
    job.cross()
    expected = NormSums(parts_sum=(2.0, 4.0), mean_sqr=(10.0, 20.0), num_examples=8, num_parts=2)
    assert absorbed == [expected] * 2


def test_that_short_steps_share_an_exchange_and_ranks_still_act_together() -> None:
    job = Job(3)
    for _ in range(60):
        job.now += 0.05
        assert job.cross() == [UNCHANGED] * 3
    before = len(job.wire.rounds)
    for _ in range(50):
        job.now += 0.05
        job.cross()
    # Every quarter of a second.
    assert len(job.wire.rounds) - before == 10
    absorbed: list[list[float]] = [[], [], []]
    stopped = []
    for number in range(12):
        for rank, boundary in enumerate(job.ranks):
            boundary.stop.is_set = rank == 1 and number > 1
            sums = NormSums(parts_sum=(float(number),), mean_sqr=(1.0,), num_examples=8, num_parts=2)
            step = ModelStep(
                sums=sums, update_noise=lambda all_, rank=rank: absorbed[rank].extend(all_.parts_sum)
            )
            job.now += 0.05 / 3
            try:
                boundary.cross((step,), proposal=None, wait=False)
            except TrainingStopped:
                stopped.append((rank, number))
        if stopped:
            break
    # All of them stopped at the same boundary, having taken in the same steps, one by one and added up.
    assert stopped == [(rank, stopped[0][1]) for rank in range(3)]
    assert absorbed == [[3.0 * number for number in range(len(absorbed[0]))]] * 3
    assert len(absorbed[0]) > 1
    assert job.disk.done == ["written"]


def test_that_a_batch_proposed_in_one_loop_is_not_used_in_the_next() -> None:
    job = Job(2)
    choice = BatchChoice(global_batch_size=100, atomic_batch_size=50, accumulation_steps=0)
    job.cross(proposal=choice)
    for boundary in job.ranks:
        boundary.begin_loop()
    assert [job.cross() for _ in range(2)] == [[UNCHANGED] * 2] * 2


class LoopingLoader:
    """A loader whose position the test sets."""

    name_across_epochs = "loader-0"

    def __init__(self, length: int | None) -> None:
        self.position_and_length: tuple[int, int | None] = (0, length)

    def go(self, job: Job, num_steps: int, *, took_s: float = 1.0) -> list[Any]:
        """Take steps of 10 examples; return the ranks' results after each."""
        outcomes = []
        for _ in range(num_steps):
            job.now += took_s
            self.position_and_length = (self.position_and_length[0] + 10, self.position_and_length[1])
            outcomes.append(job.cross())
        return outcomes


def leave(job: Job) -> None:
    """End the loop, as it does before code that takes long."""
    job.epoch_end.end_loop()
    for boundary in job.ranks:
        boundary.cross((), proposal=None, wait=False)


def test_that_a_request_waits_for_the_end_of_the_epoch_where_that_is_near() -> None:
    job, loader = Job(2, epoch_end_wait_s=60.0), LoopingLoader(1000)
    job.while_waiting = lambda: setattr(job.reporting, "checkpoint_request", None)
    job.epoch_end.begin_epoch()
    job.epoch_end.begin_loop(loader)
    assert loader.go(job, 50) == [[UNCHANGED] * 2] * 50
    job.reporting.checkpoint_request = 5
    # 50 steps of a second are left.
    assert loader.go(job, 50) == [[UNCHANGED] * 2] * 50
    leave(job)
    assert job.disk.done == []
    job.epoch_end.end_epoch()
    job.cross()
    assert job.cross() == [(None, True)] * 2
    assert [one.request_id for one in job.reporting.confirmed] == [5]


@pytest.mark.parametrize(("done", "length"), [(20, 1000), (2, 1000), (30, None)])
def test_that_a_request_does_not_wait_where_the_end_is_far_or_not_known(
    done: int, length: int | None
) -> None:
    job, loader = Job(1, epoch_end_wait_s=60.0), LoopingLoader(length)
    job.while_waiting = lambda: setattr(job.reporting, "checkpoint_request", None)
    job.epoch_end.begin_epoch()
    job.epoch_end.begin_loop(loader)
    loader.go(job, done)
    job.reporting.checkpoint_request = 5
    assert loader.go(job, 1) == [[(None, True)]]


def test_that_a_request_is_not_answered_where_nothing_is_left_to_train() -> None:
    job = Job(1)
    job.reporting.checkpoint_request = 5
    assert job.ranks[0].cross((), proposal=None, wait=True, is_last=True) == UNCHANGED
    assert (job.disk.done, job.reporting.confirmed) == ([], [])
    # The script goes on with further epochs.
    job.while_waiting = lambda: setattr(job.reporting, "checkpoint_request", None)
    assert job.cross() == [(None, True)]


def test_that_an_epoch_ends_where_the_script_has_left_its_loop_before() -> None:
    job, loader = Job(1, epoch_end_wait_s=60.0), LoopingLoader(100_000)
    for should_wait in (False, True):
        job.epoch_end.begin_epoch()
        loader.position_and_length = (0, 100_000)
        job.epoch_end.begin_loop(loader)
        loader.go(job, 80)
        # 20 steps of a second before a `break`.
        assert job.epoch_end.should_wait(int(job.now)) is should_wait
        loader.go(job, 20)
        job.epoch_end.end_loop()
        job.epoch_end.end_epoch()
    job.epoch_end.begin_epoch()
    job.epoch_end.begin_loop(loader)
    # Not this time: the end of the data is what is left.
    loader.go(job, 20)
    assert not job.epoch_end.should_wait(int(job.now))


def test_that_a_request_stops_waiting_for_an_end_that_does_not_come_in_time() -> None:
    job, loader = Job(1, epoch_end_wait_s=60.0), LoopingLoader(1000)
    job.while_waiting = lambda: setattr(job.reporting, "checkpoint_request", None)
    job.epoch_end.begin_epoch()
    job.epoch_end.begin_loop(loader)
    loader.go(job, 80)
    job.reporting.checkpoint_request = 5
    assert loader.go(job, 1) == [[UNCHANGED]]
    # From here on steps take longer: the end is out of reach at last.
    outcomes = loader.go(job, 10, took_s=9.0)
    assert [UNCHANGED] in outcomes
    assert [(None, True)] in outcomes
    assert outcomes.index([(None, True)]) <= 60 / 9


def test_that_sigterm_does_not_wait_for_the_end_of_the_epoch() -> None:
    job, loader = Job(1, epoch_end_wait_s=60.0), LoopingLoader(1000)
    job.epoch_end.begin_epoch()
    job.epoch_end.begin_loop(loader)
    loader.go(job, 80)
    job.reporting.checkpoint_request = 5
    assert loader.go(job, 1) == [[UNCHANGED]]
    job.ranks[0].stop.is_set = True
    assert loader.go(job, 1) == [[TrainingStopped]]
    # It answers the request as well.
    assert [one.request_id for one in job.reporting.confirmed] == [5]


def test_that_a_long_validation_and_a_stream_are_known_from_the_second_epoch_on() -> None:
    job, loader = Job(1, epoch_end_wait_s=60.0), LoopingLoader(None)
    for tail_s, is_awaited_after, is_awaited_in in [
        (100.0, True, False),
        (20.0, False, False),
        (20.0, True, True),
    ]:
        job.epoch_end.begin_epoch()
        loader.position_and_length = (0, None)
        job.epoch_end.begin_loop(loader)
        loader.go(job, 30)
        request = int(job.now)
        # Ten steps before the end of the loop, and after it.
        assert job.epoch_end.should_wait(request) is is_awaited_in
        loader.go(job, 10)
        job.epoch_end.end_loop()
        assert job.epoch_end.should_wait(request + 1) is is_awaited_after
        job.now += tail_s
        job.epoch_end.end_epoch()
        assert not job.epoch_end.should_wait(request + 2)
