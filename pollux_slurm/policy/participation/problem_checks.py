"""Check a problem, and exclude the jobs that cannot be scheduled, with a reason.

A problem that contradicts itself raises; bad numbers in one job exclude only that job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence

from pollux_slurm.errors import InvalidModelError, InvalidProblemError
from pollux_slurm.goodput import check_model
from pollux_slurm.goodput.checks import shown
from pollux_slurm.model import Allocation, GoodputModel, NodeCapacity, Objective, Problem, ProblemJob
from pollux_slurm.policy.objectives.registry import OBJECTIVES
from pollux_slurm.policy.objectives.score_checks import MAX_EXPONENT
from pollux_slurm.policy.participation.user_shares import SHARES_BETWEEN

MAX_COUNT = 10**6
MAX_MEMORY_MB = 10**12
MAX_TIME_S = 1e12
MAX_FAIR_SHARE = 1024
MAX_SEED = 2**63 - 1
_NUMBERS = frozenset({int, float})
_LENGTHS = (
    "progress",
    "epochs_done",
    "epochs_declared",
    "expected_progress",
    "expected_low",
    "expected_high",
)
PENALTIES = ("paper", "amortised")


def check_problem(problem: Problem, known: Container[tuple[NodeCapacity, ...]] = ()) -> None:
    """Raise `InvalidProblemError` for duplicate names, impossible nodes or an impossible objective.

    Nodes in `known` passed these checks before, as the very same objects.
    """
    try:
        if problem.nodes not in known:
            _check_names("node", [node.name for node in problem.nodes])
            for node in problem.nodes:
                _check_node(node)
        _check_names("job", [job.job_id for job in problem.jobs])
        _check_objective(problem.objective)
        _check_limits_and_rules(problem)
    except InvalidProblemError as error:
        raise InvalidProblemError(_brief(str(error))) from None


def _check_names(what: str, names: list[str]) -> None:
    other = [name for name in names if not isinstance(name, str)]
    if other:
        raise InvalidProblemError(f"a {what} has the name {shown(other[0])}, which is not a string")
    duplicates = _duplicates(names)
    if duplicates:
        raise InvalidProblemError(f"{what} {duplicates[0]} is listed more than once")


def find_exclusions(problem: Problem, known: Container[GoodputModel] = ()) -> dict[str, str]:
    """Return the reasons, by job id, why jobs cannot be scheduled. Such jobs keep their allocation.

    Models in `known` passed these checks before, as the very same objects.
    """
    nodes = {node.name for node in problem.nodes}
    reasons = {}
    for job in problem.jobs:
        reason = _error(job, nodes, known)
        if reason is not None:
            reasons[job.job_id] = _brief(reason)
    return reasons


def pinned_copy(job: ProblemJob, nodes: Container[str]) -> ProblemJob:
    """Return a valid, pinned copy of an excluded job, with its allocation on nodes of the problem."""
    current: dict[str, int] = {}
    for node, gpus in job.current.gpus_by_node:
        if node in nodes and _is_count(gpus):
            current[node] = current.get(node, 0) + gpus
    return ProblemJob(
        job_id=job.job_id,
        cpus_per_gpu=job.cpus_per_gpu if _is_count(job.cpus_per_gpu) else 1,
        memory_per_gpu_mb=job.memory_per_gpu_mb if _is_count(job.memory_per_gpu_mb, MAX_MEMORY_MB) else 0,
        current=Allocation.of(current),
        pinned=True,
    )


def _error(job: ProblemJob, nodes: set[str], known: Container[GoodputModel]) -> str | None:
    if not _is_clearly_valid(job, nodes):
        reason = _field_error(job, nodes)
        if reason is not None:
            return reason
    return _model_error(job, known)


def _is_clearly_valid(job: ProblemJob, nodes: set[str]) -> bool:
    """Return True for most valid jobs, models aside: one fast expression for thousands of jobs."""
    most, current = job.max_gpus, job.current.gpus_by_node
    return (
        type(job.account) is str
        and type(job.user) is str
        and type(job.pinned) is bool
        and type(job.rigid) is bool
        and type(job.held_off) is bool
        and type(job.one_node) is bool
        and job.partition_nodes is None
        and type(job.min_gpus) is int
        and (most is None or type(most) is int)
        and 1 <= job.min_gpus <= (MAX_COUNT if most is None else most) <= MAX_COUNT
        and type(job.cpus_per_gpu) is int
        and 0 <= job.cpus_per_gpu <= MAX_COUNT
        and type(job.memory_per_gpu_mb) is int
        and 0 <= job.memory_per_gpu_mb <= MAX_MEMORY_MB
        and type(job.num_restarts) is int
        and 0 <= job.num_restarts <= MAX_COUNT
        and type(job.age_s) in _NUMBERS
        and 0 <= job.age_s <= MAX_TIME_S
        and type(job.restart_delay_s) in _NUMBERS
        and 0 <= job.restart_delay_s <= MAX_TIME_S
        and type(job.waiting_s) in _NUMBERS
        and 0 <= job.waiting_s <= MAX_TIME_S
        and type(job.prediction_error) in _NUMBERS
        and 0 <= job.prediction_error <= 1
        and type(job.weight) in _NUMBERS
        and 1e-6 <= job.weight <= 1e6
        and type(job.share) in _NUMBERS
        and 1e-6 <= job.share <= 1e6
        and (job.progress is None or (type(job.progress) in _NUMBERS and 0 <= job.progress <= MAX_TIME_S))
        and job.epochs_done is None
        and job.epochs_declared is None
        and job.expected_progress is None
        and job.expected_low is None
        and job.expected_high is None
        and job.course is None
        and job.finish_by_s is None
        and job.time_left_s is None
        and type(job.promised_gpus) is int
        and 0 <= job.promised_gpus <= MAX_COUNT
        and (not current or _is_valid_allocation(current, nodes))
        and (
            job.in_place_delay_s is None
            or (type(job.in_place_delay_s) in _NUMBERS and 0 <= job.in_place_delay_s <= MAX_TIME_S)
        )
        and (not job.wings or _wings_error(job) is None)
    )


def _is_valid_allocation(gpus_by_node: Sequence[tuple[str, int]], nodes: set[str]) -> bool:
    for name, gpus in gpus_by_node:
        if name not in nodes or type(gpus) is not int or not 1 <= gpus <= MAX_COUNT:
            return False
    return len(gpus_by_node) == 1 or len(dict(gpus_by_node)) == len(gpus_by_node)


def _field_error(job: ProblemJob, nodes: set[str]) -> str | None:
    for name in ("account", "user"):
        if not isinstance(getattr(job, name), str):
            return f"{name} must be a string, not {shown(getattr(job, name))}"
    for name in ("pinned", "rigid"):
        if not isinstance(getattr(job, name), bool):
            return f"{name} must be true or false, not {shown(getattr(job, name))}"
    if not _is_set(job.partition_nodes):
        return f"partition_nodes must be a set of names, not {shown(job.partition_nodes)}"
    if job.current:
        reason = _allocation_error(job.current, nodes)
        if reason is not None:
            return reason
    if not _is_count(job.min_gpus) or job.min_gpus < 1:
        return f"min_gpus must be a whole number of at least 1, not {shown(job.min_gpus)}"
    if job.max_gpus is not None and (not _is_count(job.max_gpus) or job.max_gpus < 1):
        return f"max_gpus must be a whole number of at least 1, not {shown(job.max_gpus)}"
    if job.max_gpus is not None and job.max_gpus < job.min_gpus:
        return f"min_gpus {job.min_gpus} is above max_gpus {job.max_gpus}"
    if not _is_count(job.cpus_per_gpu) or not _is_count(job.memory_per_gpu_mb, MAX_MEMORY_MB):
        return "CPUs and memory per GPU must be whole numbers of at least 0"
    if not _is_time(job.age_s) or not _is_time(job.restart_delay_s) or not _is_count(job.num_restarts):
        return "age_s, restart_delay_s and num_restarts must be finite and at least 0"
    if job.in_place_delay_s is not None and not _is_time(job.in_place_delay_s):
        return f"in_place_delay_s must be finite and at least 0, not {shown(job.in_place_delay_s)}"
    if job.wings:
        reason = _wings_error(job)
        if reason is not None:
            return reason
    if not _is_time(job.waiting_s):
        return f"waiting_s must be finite and at least 0, not {shown(job.waiting_s)}"
    if not _is_number(job.prediction_error) or not 0 <= job.prediction_error <= 1:
        return f"prediction_error must be from 0 to 1, not {shown(job.prediction_error)}"
    for name, value in (("weight", job.weight), ("share", job.share)):
        if not _is_number(value) or not 1e-6 <= value <= 1e6:
            return f"{name} must be a number from 1e-6 to 1e6, not {shown(value)}"
    for name in (*_LENGTHS, "time_left_s"):
        value = getattr(job, name)
        if value is not None and not _is_time(value):
            return f"{name} must be finite and at least 0, not {shown(value)}"
    if job.course is not None and not _is_time(job.course.work):
        return f"the work of its course must be finite and at least 0, not {shown(job.course.work)}"
    by_s = job.finish_by_s
    if by_s is not None and not (_is_number(by_s) and -MAX_TIME_S <= by_s <= MAX_TIME_S):
        return f"finish_by_s must be finite, not {shown(by_s)}"
    if not _is_count(job.promised_gpus):
        return f"promised_gpus must be a whole number of at least 0, not {shown(job.promised_gpus)}"
    return None


def _model_error(job: ProblemJob, known: Container[GoodputModel]) -> str | None:
    duplicates = _duplicates([kind for kind, _ in job.models]) if len(job.models) > 1 else []
    if duplicates:
        return f"it has two models for GPU type {duplicates[0]}"
    for kind, model in (("", job.model), *job.models):
        if model is None or model in known:
            continue
        try:
            check_model(model)
        except InvalidModelError as error:
            return f"its model{' for ' + kind if kind else ''} is refused: {error}"
    return None


def _allocation_error(current: Allocation, nodes: set[str]) -> str | None:
    names = current.nodes
    for name, gpus in current.gpus_by_node:
        if name not in nodes:
            return f"it has GPUs on node {name}, which is not in the problem"
        if not _is_count(gpus) or gpus < 1:
            return f"its current allocation {current} has a node without GPUs"
    if len(set(names)) < len(names):
        return f"its current allocation {current} names a node twice"
    return None


def _wings_error(job: ProblemJob) -> str | None:
    if not isinstance(job.wings, tuple) or not all(isinstance(wing, Allocation) for wing in job.wings):
        return f"wings must be allocations, not {shown(job.wings)}"
    left = Counter(job.current.as_dict())
    for wing in job.wings:
        if not wing:
            return "it has a wing without GPUs"
        for name, gpus in wing.gpus_by_node:
            if not _is_count(gpus) or not 1 <= gpus <= left[name]:
                return f"its wings have GPUs on node {name} that its allocation {job.current} does not have"
            left[name] -= gpus
    return None


def _check_limits_and_rules(problem: Problem) -> None:
    for limit in problem.limits:
        if limit.kind not in ("account", "user", "qos"):
            raise InvalidProblemError(f"a limit is by account, user or qos, not by {limit.kind!r}")
        if not isinstance(limit.name, str):
            raise InvalidProblemError(f"a limit is of a name, not of {shown(limit.name)}")
        if limit.job_ids is not None and not all(isinstance(job_id, str) for job_id in limit.job_ids):
            raise InvalidProblemError(f"the limit of {limit.kind} {limit.name} counts jobs without a name")
        if not _is_count(limit.max_gpus):
            raise InvalidProblemError(
                f"the limit of {limit.kind} {limit.name} must be a whole number of GPUs"
            )
    if not _is_count(problem.seed, MAX_SEED):
        raise InvalidProblemError(
            f"the seed must be a whole number from 0 to {MAX_SEED}, not {shown(problem.seed)}"
        )
    if problem.uneven is not None and not isinstance(problem.uneven, bool):
        raise InvalidProblemError(f"uneven must be true, false or nothing, not {shown(problem.uneven)}")
    moving = problem.moving
    if not isinstance(moving.pauses, bool):
        raise InvalidProblemError(f"pauses must be true or false, not {shown(moving.pauses)}")
    if not _is_number(moving.hysteresis) or not 0.0 <= moving.hysteresis < 1.0:
        raise InvalidProblemError(
            f"hysteresis must be at least 0 and below 1, not {shown(moving.hysteresis)}"
        )
    if moving.max_reallocations is not None and not _is_count(moving.max_reallocations):
        raise InvalidProblemError("max_reallocations must be a whole number of at least 0")
    if not _is_time(moving.min_age_s) or not _is_time(moving.min_remaining_s):
        raise InvalidProblemError("min_age_s and min_remaining_s must be finite and at least 0")
    if problem.max_wait_s is not None and not _is_time(problem.max_wait_s):
        raise InvalidProblemError(
            f"max_wait_s must be finite and at least 0, not {shown(problem.max_wait_s)}"
        )
    for kind, speed in problem.gpu_speeds:
        if not isinstance(kind, str):
            raise InvalidProblemError(f"gpu_speeds names the GPU type {shown(kind)}, which is not a string")
        if not _is_number(speed) or not 1e-6 <= speed <= 1e6:
            raise InvalidProblemError(
                f"the speed of GPU type {kind} must be from 1e-6 to 1e6, not {shown(speed)}"
            )
    duplicates = _duplicates(kind for kind, _ in problem.gpu_speeds)
    if duplicates:
        raise InvalidProblemError(f"gpu_speeds names GPU type {duplicates[0]} twice")


def _check_node(node: NodeCapacity) -> None:
    if node.gpu_type is not None and not isinstance(node.gpu_type, str):
        raise InvalidProblemError(f"node {node.name}: gpu_type must be a string, not {shown(node.gpu_type)}")
    for name in ("accepts_new", "several_wings"):
        flag = getattr(node, name)
        if not isinstance(flag, bool):
            raise InvalidProblemError(f"node {node.name}: {name} must be true or false, not {shown(flag)}")
    sizes = (("num_gpus", MAX_COUNT), ("num_cpus", MAX_COUNT), ("memory_mb", MAX_MEMORY_MB))
    for name, largest in sizes:
        value = getattr(node, name)
        if not _is_count(value, largest):
            message = (
                f"node {node.name}: {name} must be a whole number from 0 to {largest}, not {shown(value)}"
            )
            raise InvalidProblemError(message)


def _check_objective(objective: Objective) -> None:
    exponent, floor = objective.exponent, objective.floor
    if not isinstance(objective.name, str) or objective.name not in OBJECTIVES:
        known = ", ".join(sorted(OBJECTIVES))
        raise InvalidProblemError(f"there is no objective {shown(objective.name)}; there are {known}")
    if not isinstance(objective.penalty, str) or objective.penalty not in PENALTIES:
        known = ", ".join(PENALTIES)
        raise InvalidProblemError(f"there is no penalty {shown(objective.penalty)}; there are {known}")
    if not _is_time(objective.horizon_s) or not objective.horizon_s > 0:
        raise InvalidProblemError(f"the horizon must be above 0 s, not {shown(objective.horizon_s)}")
    if not isinstance(objective.between, str) or objective.between not in SHARES_BETWEEN:
        known = ", ".join(SHARES_BETWEEN)
        raise InvalidProblemError(f"shares are between {known}, not between {shown(objective.between)}")
    share = objective.fair_share_gpus
    if share is not None and not (_is_count(share, MAX_FAIR_SHARE) and share >= 1):
        raise InvalidProblemError(
            f"fair_share_gpus must be a whole number from 1 to {MAX_FAIR_SHARE}, not {shown(share)}"
        )
    if not _is_number(exponent) or not -MAX_EXPONENT <= exponent <= MAX_EXPONENT:
        raise InvalidProblemError(
            f"the objective's exponent must be within ±{MAX_EXPONENT:g}, not {shown(exponent)}"
        )
    if not _is_number(floor) or not 1e-9 <= floor <= 1.0:
        raise InvalidProblemError(f"the objective's floor must be between 1e-9 and 1, not {shown(floor)}")


def _brief(text: str) -> str:
    # Names may be of any length.
    return text if len(text) <= 300 else text[:297] + "..."


def _duplicates(names: Iterable[str]) -> list[str]:
    listed = list(names)
    if len(set(listed)) == len(listed):
        return []
    return sorted(name for name, count in Counter(listed).items() if count > 1)


def _is_count(value: object, largest: int = MAX_COUNT) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest


def _is_set(value: object) -> bool:
    return value is None or (isinstance(value, frozenset) and all(isinstance(item, str) for item in value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TIME_S
