"""What earlier jobs of a job's kind teach it: sizes, length, memory, and what its moves cost. Pure.

Only jobs whose models agree with the progress of their runs teach (`model_checks`), and only jobs of the same
user, or of the same account where the admin wants that.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime

from pollux_slurm.daemon.decide import model_checks
from pollux_slurm.daemon.decide.model_checks import Models
from pollux_slurm.goodput import agrees, taught_model, training_course
from pollux_slurm.goodput.taught_model import trains_the_same
from pollux_slurm.model import GoodputModel, JobState, ProblemJob, TrainingCourse
from pollux_slurm.store.contract.interface import NEWEST_OF_A_KIND, EarlierJob, JobRecord, Sample
from pollux_slurm.text import plural

_KILLED = (JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT)
# By this factor at most, the progress of equal trainings differs at their end.
_ALIKE = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """The models of a job with what its kind knows beyond them, and a note on that for its owner.

    Their limits leave out micro-batches for which jobs of its kind had no memory.
    `lengths` are the useful examples of the completed jobs of its kind that no killed one has passed.
    `course` is that of the longest of them, for a job with a moment.
    The times of moves are the medians of those that jobs of its kind measured, None where none did.
    """

    models: Models
    note: str | None = None
    lengths: tuple[float, ...] = ()
    course: TrainingCourse | None = None
    restart_delay_s: float | None = None
    standstill_s: float | None = None
    warm_up_s: float | None = None


class Kinds:
    """The kinds of the jobs that are not over, by the earlier jobs that have measured step times.

    `shared_by` is "user", "account" or "nobody". `course_of` returns the course of a completed job; it is
    asked for jobs with a moment only.
    """

    def __init__(
        self,
        earlier: Iterable[EarlierJob] = (),
        *,
        shared_by: str = "user",
        course_of: Callable[[EarlierJob], TrainingCourse] | None = None,
    ) -> None:
        self._shared_by, self._course_of = shared_by, course_of
        self._jobs: defaultdict[tuple[object, str], list[EarlierJob]] = defaultdict(list)
        if shared_by == "nobody":
            return
        for job in earlier:
            if _is_believed(job):
                owner = job.user_id if shared_by == "user" else job.account
                self._jobs[owner, job.kind].append(job)

    def teach(self, record: JobRecord, models: Models) -> Taught:
        """Return the models of a job, with what its kind teaches it where that knows larger sizes."""
        kind = record.terms.kind
        owner = record.terms.user_id if self._shared_by == "user" else record.account
        others = [] if kind is None else self._jobs.get((owner, kind), [])
        others = [job for job in others if job.slurm_job_id != record.slurm_job_id]
        if not others:
            return Taught(models=models)
        agreeing = [job for job in others if _agrees(models, job)]
        if not agreeing:
            return Taught(models=models, note=_doubt(models, max(others, key=_seen)))
        # Of the newest the one that has seen most. Older ones teach all but sizes.
        teacher = max(agreeing[:NEWEST_OF_A_KIND], key=_seen)
        taught = _taught(models, teacher)
        proven = _proven_atomic(record, taught)
        whose = f"by {record.user_name}" if self._shared_by == "user" else f"in account {record.account}"
        source = f"from {plural(len(agreeing), 'earlier job')} of its kind {whose}"
        # A killed job has passed lengths that are too short. It may also have failed after its training.
        passed = max((job.progress for job in agreeing if job.state in _KILLED), default=0.0) / _ALIKE
        completed = [job for job in agreeing if job.state is JobState.COMPLETED and job.progress > passed]
        lengths = tuple(job.progress * job.model.limits.initial_batch_size for job in completed)
        return Taught(
            models=_narrowed(taught, agreeing, proven),
            note=_note(taught != models, source, teacher, lengths, _memory_note(agreeing, proven)),
            lengths=lengths,
            course=self._course(record, completed),
            restart_delay_s=_median(job.mean_restart_delay_s for job in agreeing),
            standstill_s=_median(job.mean_standstill_s for job in agreeing),
            warm_up_s=_median(job.mean_warm_up_s for job in agreeing),
        )

    def _course(self, record: JobRecord, completed: Sequence[EarlierJob]) -> TrainingCourse | None:
        if record.terms.finish_by is None or self._course_of is None or not completed:
            return None
        return self._course_of(max(completed, key=lambda job: job.progress))


def course_of_job(
    job: EarlierJob, models: Sequence[tuple[datetime, GoodputModel]], samples: Sequence[Sample]
) -> TrainingCourse:
    """Return the course of a completed job from its history, oldest first."""
    initial, seen, newest = job.model.limits.initial_batch_size, [], -1
    for sample in sorted(samples, key=lambda sample: sample.at):
        while newest + 1 < len(models) and models[newest + 1][0] <= sample.at:
            newest += 1
        noise = models[newest][1].statistics if newest >= 0 else None
        if noise is not None:
            seen.append((sample.progress * initial, noise))
    return training_course(job.progress * initial, seen)


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known, None without any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


# What jobs have measured that are over is the same in each round.
@functools.lru_cache(maxsize=20_000)
def _is_believed(job: EarlierJob) -> bool:
    """Return whether a job's models agree with the progress of its runs."""
    models: Models = (None, job.models) if job.models else (job.model, ())
    return model_checks.model_doubt(models, job.recent_runs) is None


def _seen(job: EarlierJob) -> tuple[int, int]:
    return job.model.max_gpus_seen, job.model.max_nodes_seen


def _agrees(models: Models, teacher: EarlierJob) -> bool:
    """Return whether no measurement of a job contradicts those of `teacher`."""
    for_all, by_type = models
    if not teacher.models:
        return agrees(for_all, teacher.model)
    own = dict(by_type)
    return all(agrees(own.get(name) if by_type else for_all, model) for name, model in teacher.models)


def _taught(models: Models, teacher: EarlierJob) -> Models:
    """Return a job's models with what `teacher`, which agrees with them, knows beyond them."""
    for_all, by_type = models
    if not teacher.models:
        return taught_model(for_all, _early(teacher.model, teacher)), by_type
    found = dict(by_type)
    for gpu_type, model in teacher.models:
        own = found.get(gpu_type) if by_type else for_all
        taught = taught_model(own, _early(model, teacher))
        if taught is not None:
            found[gpu_type] = taught
    return None, tuple(found.items())


def _proven_atomic(record: JobRecord, models: Models) -> int:
    """Return the micro-batch that a job trains with, where it knows one GPU type at most; else 0."""
    batch = None if record.sample is None else record.sample.batch
    return 0 if batch is None or len(models[1]) > 1 else batch.atomic_batch_size


def _narrowed(models: Models, jobs: Sequence[EarlierJob], proven: int) -> Models:
    """Return a job's models, for each GPU type without the micro-batches for which `jobs` had no memory.

    `proven` is the micro-batch that fits by the job itself: less by others says nothing.
    """
    for_all, by_type = models
    found = []
    for gpu_type, model in by_type:
        of_type = (of for job in jobs for name, of in job.models if name == gpu_type)
        found.append((gpu_type, _with_memory(model, _memory(of_type, proven))))
    if for_all is not None:
        for_all = _with_memory(for_all, _memory((job.model for job in jobs), proven))
    return for_all, tuple(found)


def _memory(models: Iterable[GoodputModel], proven: int) -> tuple[int, int] | None:
    """Return the micro-batch that fits, and the one that did not, by those that ran out of memory.

    They are of the median: a wrong one moves it little. None where none ran out, or more is `proven` to fit.
    """
    limits = [model.limits for model in models]
    known = [
        (each.max_atomic, each.failed_atomic)
        for each in limits
        if each.max_atomic is not None and each.failed_atomic is not None
    ]
    median = statistics.median_low(known) if known else None
    return None if median is None or median[0] < proven else median


def _with_memory(model: GoodputModel, memory: tuple[int, int] | None) -> GoodputModel:
    if memory is None:
        return model
    return dataclasses.replace(model, limits=model.limits.narrowed(memory[0], accumulation=True))


def fitting_atomic(record: JobRecord, asked: ProblemJob, gpu_types: Set[str | None]) -> int | None:
    """Return the micro-batch that fits on `gpu_types` by jobs of its kind, None where it knows that itself.

    `asked` is the job as its kind has taught it; without types, it may start on any.
    """
    models = [model for name, model in asked.models if not gpu_types or name in gpu_types]
    if asked.model is not None:
        models.append(asked.model)
    own = None if record.model is None else record.model.limits.max_atomic
    known = (model.limits.max_atomic for model in models)
    return min((most for most in known if most is not None and (own is None or most < own)), default=None)


def _early(model: GoodputModel, job: EarlierJob) -> GoodputModel:
    """Return a model with the gradient statistics of the job's beginning: those of its end allow too much."""
    return dataclasses.replace(model, statistics=job.early_statistics)


def _memory_note(jobs: Sequence[EarlierJob], proven: int) -> str | None:
    """Return what fits into memory and what does not, on each GPU type where something did not."""
    by_type: defaultdict[str | None, list[GoodputModel]] = defaultdict(list)
    for job in jobs:
        for gpu_type, model in job.models or ((None, job.model),):
            by_type[gpu_type].append(model)
    parts = []
    for gpu_type, models in by_type.items():
        memory = _memory(models, proven)
        if memory is not None:
            device = "memory" if gpu_type is None else f"the memory of a {gpu_type}"
            parts.append(f"{memory[0]} examples at once fit into {device}, {memory[1]} did not")
    return "; ".join(parts) if parts else None


def _note(
    is_taught: bool, source: str, teacher: EarlierJob, lengths: Sequence[float], memory: str | None
) -> str | None:
    """Return what a job is told by its kind: sizes that it has not measured, its length, and its memory."""
    if not is_taught and not lengths and memory is None:
        return None
    parts = [source]
    if is_taught:
        gpus = teacher.model.max_gpus_seen
        parts.append(f"job {teacher.slurm_job_id} ({teacher.name}) ran on up to {plural(gpus, 'GPU')}")
    if lengths:
        parts.append(f"{len(lengths)} completed, and tell{'s' * (len(lengths) == 1)} how long it will be")
    if memory is not None:
        parts.append(memory)
    return "; ".join(parts)


def _doubt(models: Models, teacher: EarlierJob) -> str:
    """Return in what a job differs from one of its kind, which therefore teaches it nothing."""
    for_all, by_type = models
    own = [model for model in (for_all, *(model for _, model in by_type)) if model is not None]
    differs = "its steps differ by more than 30 % from those"
    if not all(trains_the_same(model, teacher.model) for model in own):
        differs = "it has not as many parameters, or not the precision,"
    return f"not from its kind: {differs} of job {teacher.slurm_job_id} ({teacher.name})"
