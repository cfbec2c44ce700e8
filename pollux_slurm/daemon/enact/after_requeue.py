"""The steps after a job was stopped: requeued → reshaped → released → running → confirmed.

From `requeued` on, the job is brought to run again at whatever price: in its target; where that was taken
meanwhile, in what comes nearest to it now, which is then its target; else in its old shape, else with the
most GPUs that one node has free, else with its minimum on any node.

A pause ends here before that: its job keeps its shape and is *parked*, that is released with a begin time
some minutes ahead, which rounds prolong (`daemon.pause_ttl_s`). Not held: Slurm does not show who else wants
a held job to stay held, while a hold of a parked job is somebody's, and wins. And when no daemon comes back,
the job starts by itself.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable

from pollux_slurm.daemon.enact import admin_orders
from pollux_slurm.daemon.enact.awaited_gpus import GpuBook, Needs
from pollux_slurm.daemon.enact.open_reallocation import SETTLING_S, Case, Desk, Step
from pollux_slurm.daemon.recovery import failed_moves, failed_starts
from pollux_slurm.errors import JobStateError, SlurmCommandError
from pollux_slurm.model import JobShape, JobState, SlurmJob

_log = logging.getLogger(__name__)

# Reasons of a pending job that no waiting cures, as Slurm 22.05 words them.
_HOPELESS_REASONS = frozenset({"BadConstraints", "PartitionNodeLimit"})

_BY_HAND = "the job was held by another hand"


class Restarting:
    """Gives a stopped or waiting job its new place and sees it running there."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def requeued(self, case: Case, book: GpuBook) -> None:
        """Wait for Slurm to have killed the job; repeat the command that may not have been given."""
        reallocation, job = case.reallocation, case.job
        if job is not None and self._brings_back(case, job):
            return
        if self._desk.fails_as_over(case):
            return
        assert job is not None
        was_requeued = job.restart_count > reallocation.from_restart_count
        if job.state is JobState.PENDING and was_requeued:
            if self._desk.move(reallocation, Step.RESHAPED):
                self.reshaped(case.at(Step.RESHAPED), book)
        elif job.state is JobState.RUNNING and was_requeued:
            self._desk.move(reallocation, Step.ROLLED_BACK, "the job was started again by another hand")
        elif job.state is JobState.RUNNING:
            if case.age_s > self._desk.config.requeue_timeout_s:
                self._desk.move(reallocation, Step.ROLLED_BACK, "Slurm did not requeue the job in time")
            else:
                self._desk.requeue(case)
        # COMPLETING: Slurm is killing it. There is nothing to do but wait for Slurm's own time-outs.

    def _brings_back(self, case: Case, job: SlurmJob) -> bool:
        """Requeue a job that has failed and is to run again all the same; False for any other."""
        reallocation = case.reallocation
        is_back = failed_moves.is_return(reallocation) or failed_starts.is_start_again(reallocation)
        if (
            job.state is not JobState.FAILED
            or not is_back
            or job.restart_count != reallocation.from_restart_count
            or not case.is_ours
        ):
            return False
        if case.age_s > self._desk.config.requeue_timeout_s:
            return False  # and so it is over
        self._desk.bring_back(case)
        return True

    def reshaped(self, case: Case, book: GpuBook) -> None:
        """Give the held job its new shape, or, for a pause, none and a begin time."""
        job = case.job
        if self._desk.fails_as_over(case):
            return
        assert job is not None
        if job.state is JobState.RUNNING:
            # For a pending job: Slurm started it before it was held. For a requeued one: another hand did.
            self._desk.move(case.reallocation, Step.ROLLED_BACK, "the job started before it was reshaped")
        elif job.state is JobState.PENDING and self._is_held_by_hand(case):
            self._desk.move(case.reallocation, Step.FAILED, _BY_HAND)
        elif job.state is JobState.PENDING and case.reallocation.is_pause:
            self._park(case)
        elif job.state is JobState.PENDING:
            self._reshape_or_way_back(case, book)

    def _is_held_by_hand(self, case: Case) -> bool:
        """Whether a person, and not this reallocation, holds the waiting job; a drain is to end held anyway.

        A reallocation holds its job by the requeue alone, which Slurm tells from a later hold, but for one by
        the job's owner on top of it. So the hand wins, whichever daemon goes on with the reallocation.
        """
        reallocation, job = case.reallocation, case.job
        if job is None or not job.held or admin_orders.is_drain(reallocation):
            return False
        if self._desk.has_released(reallocation):
            return True
        if admin_orders.is_resume(reallocation) and reallocation.step is Step.RESHAPED:
            return False
        runs = reallocation.from_restart_count + reallocation.moves_running
        return not (job.held_since_requeue or job.held_by_slurm) or job.restart_count != runs

    def _park(self, case: Case) -> None:
        if admin_orders.is_drain(case.reallocation):
            # Held since the requeue, it stays so: whoever ordered it lets it go again.
            if case.job is not None and not case.job.held:
                self._desk.hold(case)
            self._desk.move(case.reallocation, Step.CONFIRMED)
            return
        try:
            left_s = case.reallocation.time_left_s
            self._desk.slurm.set_begin_time(
                case.id, ahead_s=self._desk.config.pause_ttl_s, time_limit_s=left_s
            )
        except JobStateError:
            raise
        except SlurmCommandError as error:
            self._desk.release(case)
            self._desk.move(case.reallocation, Step.FAILED, f"Slurm refused to let it wait: {error}")
            return
        if self._desk.move(case.reallocation, Step.RELEASED):
            self._desk.release(case)

    def _reshape_or_way_back(self, case: Case, book: GpuBook) -> None:
        """Reshape the held job to the best that Slurm takes, and release it."""
        if case.reallocation.moves_running and book.lost_to_neighbours(case.reallocation):
            case = self._elsewhere(case, book) or case
        refused = self._reshape_to_first(case, self._shapes(case, book))
        reason = f"Slurm refused the shape: {refused[0]}" if refused else None
        if self._desk.move(case.reallocation, Step.RELEASED, reason):
            self._desk.release(case)

    def _reshape_to_first(self, case: Case, shapes: Iterable[JobShape]) -> list[str]:
        """Give the held job the first shape that Slurm takes; return why it refused those before it."""
        refused: list[str] = []
        for shape in shapes:
            try:
                self._reshape(case, shape)
                break
            except JobStateError:
                raise
            except SlurmCommandError as error:
                refused.append(str(error))
                _log.warning("job %s: cannot get the shape %s: %s", case.id, shape, error)
        return refused

    def _reshape(self, case: Case, shape: JobShape) -> None:
        left_s = case.reallocation.time_left_s
        self._desk.slurm.reshape(case.id, dataclasses.replace(shape, time_limit_s=left_s), known=case.job)

    def _shapes(self, case: Case, book: GpuBook) -> Iterable[JobShape]:
        """Return the shapes to try: the target, what it had, the most that fits anywhere, its minimum.

        The target is tried first even when it is taken by jobs that will leave it; not when it is lost, but
        for a job that has waited in the queue anyway.
        """
        target, source = case.reallocation.target, case.reallocation.source
        cpus_per_gpu = case.record.cpus_per_gpu if case.record else 1
        if not (case.reallocation.moves_running and book.lost_to_neighbours(case.reallocation)):
            yield JobShape.of(target, cpus_per_gpu=cpus_per_gpu)
        if source and book.has_room_for(source, but_for=case.reallocation.id):
            yield JobShape.of(source, cpus_per_gpu=cpus_per_gpu)
        yield from self._any_shapes(case, book)

    @staticmethod
    def _any_shapes(case: Case, book: GpuBook) -> Iterable[JobShape]:
        """Return the most GPUs that one node has free now, up to what was planned, and the job's minimum.

        Both on whichever node Slurm likes. A job that may have left processes on one of them gets neither: it
        waits until its begin time, two minutes after its requeue, and rounds see to the rest
        (`returned_nodes`).
        """
        reallocation, needs, least = case.reallocation, _needs(case), _least(case)
        if book.may_have_leftover(reallocation.source):
            return
        most = max(reallocation.target.num_gpus, reallocation.source.num_gpus, least)
        if case.job is not None:
            found = book.most_on_one_node(case.job, most=most, needs=needs, but_for=reallocation.id)
            if found > least:
                yield JobShape(num_gpus=found, nodes=needs.named, cpus_per_gpu=needs.cpus_per_gpu)
        yield JobShape(num_gpus=least, nodes=needs.named, cpus_per_gpu=needs.cpus_per_gpu)

    def _elsewhere(self, case: Case, book: GpuBook) -> Case | None:
        """Journal, once, what fits now as the target of a job whose place was taken; None if nothing does.

        That is what comes nearest to the target, or its old place where that is free and has more GPUs.
        """
        reallocation, job = case.reallocation, case.job
        if job is None or not reallocation.target or reallocation.retargeted:
            return None
        source, target = reallocation.source, reallocation.target
        found = book.best_fit(job, target, needs=_needs(case), but_for=reallocation.id)
        can_return = bool(source) and book.has_room_for(source, but_for=reallocation.id)
        if can_return and found.num_gpus < min(source.num_gpus, target.num_gpus):
            found = source
        if found == target or found.num_gpus < _least(case):
            return None
        elsewhere = self._desk.retarget(case, found, f"instead of {target}, which others took")
        if elsewhere is not None:
            book.reserve(elsewhere.reallocation)
        return elsewhere

    def released(self, case: Case, book: GpuBook) -> None:
        """Wait for Slurm to start the job in its place, and give the place up when it is gone."""
        reallocation, job = case.reallocation, case.job
        if self._fails_as_fallen(case) or self._desk.fails_as_over(case):
            return
        assert job is not None
        if job.state is JobState.PENDING and self._is_held_by_hand(case):
            self._desk.move(reallocation, Step.FAILED, _BY_HAND)
        elif job.state is JobState.PENDING and _is_to_go_elsewhere(case, job):
            # The daemon before may have come no further than to say so.
            self._reshape_elsewhere(case)
            self._desk.release(case)
        elif job.state is JobState.PENDING and job.held:
            self._desk.release(case)
        elif reallocation.is_pause:
            self._paused(case, job)
        elif job.state is JobState.RUNNING:
            self._desk.move(reallocation, Step.RUNNING)
        elif job.state is JobState.PENDING:
            is_lost = book.lost_to_neighbours(reallocation)
            waited_s = self._desk.waited_s(case)
            is_hopeless = job.reason in _HOPELESS_REASONS or job.blocked_because is not None
            is_late = waited_s > self._desk.config.start_timeout_s or is_hopeless
            if is_late or (is_lost and waited_s > SETTLING_S):
                self._give_up_place(case, job, book)

    def _paused(self, case: Case, job: SlurmJob) -> None:
        """The end of a pause: the job waits, unheld, for the round that gives it GPUs again."""
        reallocation = case.reallocation
        if job.state is JobState.PENDING:
            self._desk.move(reallocation, Step.CONFIRMED)
        elif job.state is JobState.RUNNING:
            self._desk.move(reallocation, Step.FAILED, "the job was started again by another hand")

    def _fails_as_fallen(self, case: Case) -> bool:
        """End the reallocation of a job that failed before a step in its new shape: it may still go back."""
        reallocation, job = case.reallocation, case.job
        began = job is not None and job.restart_count == reallocation.from_restart_count + 1
        if job is None or job.state is not JobState.FAILED or not (began and reallocation.moves_running):
            return False
        if failed_moves.is_return(reallocation) or failed_starts.is_start_again(reallocation):
            return False
        if not case.is_ours or _has_stepped(case):
            return False
        reason = failed_moves.reason_of_fall(job, reallocation)
        self._desk.move(reallocation, Step.FAILED, reason, job_failed=True)
        return True

    def _give_up_place(self, case: Case, job: SlurmJob, book: GpuBook) -> None:
        """Let the job start with what fits now: once in a place of its own, then as Slurm likes.

        Where nothing fits, it waits in the queue with its minimum, and the next rounds decide about it.
        """
        self._desk.forget_release(case)
        elsewhere = self._elsewhere(case, book)
        if elsewhere is not None and self._reshape_elsewhere(elsewhere):
            self._desk.release(elsewhere)
            return
        case = elsewhere or case
        self._reshape_to_first(case, self._any_shapes(case, book))
        self._desk.release(case)
        self._desk.move(case.reallocation, Step.FAILED, f"did not start in its new shape ({job.reason})")

    def _reshape_elsewhere(self, case: Case) -> bool:
        """Give the held job the shape of its other target; False when Slurm refuses."""
        shape = JobShape.of(case.reallocation.target, cpus_per_gpu=_needs(case).cpus_per_gpu)
        return not self._reshape_to_first(case, [shape])

    def running(self, case: Case, book: GpuBook) -> None:
        """Compare what the job got with the plan, and wait for its first step there."""
        reallocation, job = case.reallocation, case.job
        is_running = job is not None and job.state is JobState.RUNNING
        if job is not None and is_running and job.allocation != reallocation.target:
            self._desk.move(
                reallocation, Step.FAILED, f"got {job.allocation} instead of {reallocation.target}"
            )
        elif job is not None and is_running and (odd := _odd_gpus(case, job, book)) is not None:
            self._desk.move(reallocation, Step.FAILED, odd)
        elif _has_stepped(case):
            self._desk.move(reallocation, Step.CONFIRMED)
        elif self._fails_as_fallen(case) or self._desk.fails_as_over(case):
            return
        elif not is_running:
            state = job.state.value if job else "gone"
            self._desk.move(reallocation, Step.FAILED, f"the job is {state} before its first step")
        elif not reallocation.moves_running:
            # It had never run: there is no step to compare with and nothing that it could have lost.
            self._desk.move(reallocation, Step.CONFIRMED)
        elif case.age_s > self._desk.config.first_report_timeout_s:
            self._desk.move(reallocation, Step.FAILED, "no step was reported in the new shape in time")


def _needs(case: Case) -> Needs:
    record = case.record
    if record is None:
        return Needs()
    return Needs(
        cpus_per_gpu=record.cpus_per_gpu,
        memory_per_gpu_mb=record.memory_per_gpu_mb,
        named=record.required_nodes,
    )


def _least(case: Case) -> int:
    return case.record.terms.min_gpus if case.record else 1


def _is_to_go_elsewhere(case: Case, job: SlurmJob) -> bool:
    reallocation = case.reallocation
    return reallocation.retargeted and {*job.required_nodes} != {*reallocation.target.nodes}


def _has_stepped(case: Case) -> bool:
    run = case.record.run if case.record else None
    return run is not None and run.restart_count > case.reallocation.from_restart_count and run.num_steps > 0


def _odd_gpus(case: Case, job: SlurmJob, book: GpuBook) -> str | None:
    """Return what is wrong with the GPUs that the job runs on, by Slurm's types and by its own count."""
    wanted = job.requested_gpu_type
    for node, gpus in job.allocation.gpus_by_node:
        if wanted is not None and book.type_of(node) != wanted:
            return f"got {gpus} GPUs of type {book.type_of(node)} on {node}, not {wanted}"
    run = case.record.run if case.record else None
    if run is None or not run.gpus_per_node or not _has_stepped(case):
        return None
    counted, planned = sorted(run.gpus_per_node), sorted(gpus for _, gpus in job.allocation.gpus_by_node)
    if counted != planned:
        return f"its run counts {counted} GPUs on its nodes, where Slurm gave it {planned}"
    return None
