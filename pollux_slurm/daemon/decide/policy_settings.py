"""Turn the admin's `[policy]` settings into fields of a scheduling problem, and check them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pollux_slurm.config import PolicyConfig
from pollux_slurm.durations import DURATION_FORMS, parse_duration
from pollux_slurm.errors import ConfigError, InvalidProblemError
from pollux_slurm.model import GpuLimit, MovingRules, Objective, Problem, ProblemJob
from pollux_slurm.policy.objectives.moving_rules import moving_rules
from pollux_slurm.policy.participation.problem_checks import check_problem

EVERYONE = "*"


def objective(policy: PolicyConfig) -> Objective:
    """Return the objective to maximise."""
    return Objective(
        name=policy.objective,
        exponent=policy.exponent,
        floor=policy.floor,
        penalty=policy.penalty,
        horizon_s=policy.horizon_s,
        fair_share_gpus=policy.fair_share_gpus,
        between=policy.between,
    )


def share_half_life_s(policy: PolicyConfig) -> float | None:
    """Return the half-life of used GPUs in shares; None where shares have no memory. Raises `ConfigError`."""
    text = policy.share_half_life
    if text is None:
        return None
    found = parse_duration(text)
    # The store has what was used by day.
    if found is None or found.total_seconds() < 86400:
        raise ConfigError(f"policy.share_half_life: expected {DURATION_FORMS}, of at least 1d, not {text!r}")
    if policy.between == "jobs":
        raise ConfigError('policy.share_half_life: jobs have no memory; set policy.between = "users"')
    return found.total_seconds()


def moving(policy: PolicyConfig) -> MovingRules:
    """Return the rules on when running jobs may be moved. How long each has run is a matter of each job."""
    rules = moving_rules(policy.objective, pauses=policy.pauses, hysteresis=policy.hysteresis)
    return replace(rules, max_reallocations=policy.max_reallocations, min_remaining_s=policy.min_remaining_s)


def limits(policy: PolicyConfig, jobs: Iterable[ProblemJob]) -> tuple[GpuLimit, ...]:
    """Return the limits of the users and accounts of `jobs`; `*` is for names without their own limit."""
    jobs = tuple(jobs)
    found = []
    for kind, table in (("account", dict(policy.account_limits)), ("user", dict(policy.user_limits))):
        for name in sorted({getattr(job, kind) for job in jobs}):
            most = table.get(name, table.get(EVERYONE))
            if most is not None:
                found.append(GpuLimit(kind=kind, name=name, max_gpus=most))
    return tuple(found)


def weight(policy: PolicyConfig, *, account: str, user: str, job_id: str) -> float:
    """Return a job's weight: the product of its account's, its user's and its own."""
    tables: tuple[tuple[Mapping[str, float], str], ...] = (
        (dict(policy.account_weights), account),
        (dict(policy.user_weights), user),
        (dict(policy.job_weights), job_id),
    )
    found = 1.0
    for table, name in tables:
        found *= table.get(name, 1.0)
    return found


def check(policy: PolicyConfig) -> None:
    """Raise `ConfigError` for settings that are valid alone, but not together."""
    share_half_life_s(policy)
    try:
        check_problem(
            Problem(
                nodes=(),
                jobs=(),
                objective=objective(policy),
                moving=moving(policy),
                gpu_speeds=policy.gpu_speeds,
                max_wait_s=policy.max_wait_s,
            )
        )
    except InvalidProblemError as error:
        raise ConfigError(f"[policy]: {error}") from None
