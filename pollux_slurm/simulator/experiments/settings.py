"""The settings of a simulation: everything but its workload and traces, as plain values."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.errors import InvalidProblemError, SimulationError, UsageError
from pollux_slurm.model import Objective, Problem
from pollux_slurm.policy.objectives.registry import OBJECTIVES
from pollux_slurm.policy.participation.problem_checks import PENALTIES, check_problem
from pollux_slurm.policy.participation.user_shares import SHARES_BETWEEN
from pollux_slurm.simulator.engine.autoscale import Autoscaler, NodeSupply, ScalingLimits, UtilityAutoscaler
from pollux_slurm.simulator.engine.cluster import Cluster, NodeGroup, SchedulingPolicy
from pollux_slurm.simulator.engine.cluster_rules import RULES, Delays, Failures, InPlace, Rules, slurm_rules
from pollux_slurm.simulator.engine.measurements import NO_NOISE, MeasurementNoise
from pollux_slurm.simulator.engine.random_events import draw_unmanaged_jobs
from pollux_slurm.simulator.engine.sharing import PairRates
from pollux_slurm.simulator.inputs.rate_tables import read_pair_rates
from pollux_slurm.simulator.policies import (
    POLICIES,
    SHARING,
    AntManPolicy,
    ExternalPolicy,
    GandivaPolicy,
    PolluxPolicy,
    SiaPolicy,
    make_policy,
)
from pollux_slurm.simulator.site.measured_jobs import MeasuredDelays
from pollux_slurm.text import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """The settings of rules `slurm`. Times in seconds, shares between 0 and 1.

    `adaptive_share` of the jobs are adaptive. `delays` are a site's measured ones. `requeue_s` replaces the
    time from a requeue to the new start (a plain requeue takes 121 s). Unmanaged jobs use `unmanaged_share`
    of the GPUs on average, for `unmanaged_hours`. Each node fails every `mtbf_s` on average; None is never.
    """

    adaptive_share: float = 1.0
    requeue_s: float | None = None
    unmanaged_share: float = 0.0
    unmanaged_hours: float = 24.0
    mtbf_s: float | None = None
    repair_s: float = 1800.0
    checkpoint_interval_s: float = 1800.0
    delays: MeasuredDelays | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """The settings of autoscaling: see `autoscale.UtilityAutoscaler` and `ScalingLimits`."""

    low: float = 0.55
    high: float = 0.75
    min_nodes: int = 1
    boot_s: float = 120.0

    @property
    def text(self) -> str:
        return f"{self.low:g} to {self.high:g}, from {plural(self.min_nodes, 'node')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of one simulation, without its workload and traces. Times in seconds.

    `name` is that of the policy in tables, where it has one of its own.
    `objective`, `between`, `share_half_life_s`, `declared`, `kinds`, `exponent` and `penalty` are for policy
    `pollux`; None is the objective's default, and no memory of shares. `exponent` is also the power of `sia`.
    `command`, `time_limit_s` and `user_batch` are of policy `external`.
    `sharing` is the file with the rates of pairs for `gandiva` and `antman`, `guaranteed` the latter's share.
    `groups` replaces `num_nodes` × `gpus_per_node`. `restart_delay_s` is the delay of a move under rules
    `osdi21`, and under `slurm` the expected delay of a job's first move. `slurm` is for rules `slurm`; `seed`
    for these and for `noise`.
    `interference` is the part of its speed that a job over several nodes loses beside another. The step times
    that agents measure are off by `noise`. With `in_place`, jobs are moved in place where they can be. With
    `scaling`, the cluster is the largest that it may become.

    Raises `UsageError` for what cannot be simulated.
    """

    policy: str = "pollux"
    name: str | None = None
    objective: str = "generalized-mean"
    between: str = "users"
    share_half_life_s: float | None = None
    declared: bool = False
    kinds: bool = False
    exponent: float | None = None
    penalty: str | None = None
    command: tuple[str, ...] = ()
    time_limit_s: float = 10.0
    user_batch: bool = False
    guaranteed: float = 0.5
    sharing: str | None = None
    rules: str = "osdi21"
    num_nodes: int = 16
    gpus_per_node: int = 4
    groups: tuple[NodeGroup, ...] = ()
    interval_s: float = 60.0
    restart_delay_s: float = 30.0
    interference: float = 0.0
    noise: MeasurementNoise = NO_NOISE
    in_place: InPlace | None = None
    slurm: SlurmSettings = SlurmSettings()
    scaling: ScalingSettings | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("policy", self.policy, POLICIES)
        _one_of("objective", self.objective, sorted(OBJECTIVES))
        _one_of("between", self.between, SHARES_BETWEEN)
        _one_of("rules", self.rules, RULES)
        if self.penalty is not None:
            _one_of("penalty", self.penalty, PENALTIES)
        if self.rules != "slurm" and self.slurm != SlurmSettings():
            raise UsageError(
                "partial adoption, plain requeues, unmanaged jobs and failures exist only under "
                f"rules slurm, not under {self.rules}"
            )
        try:
            if self.policy == "pollux" and self.exponent is not None:
                # Checked here, not at the first decision of a run that others may precede.
                check_problem(Problem(nodes=(), jobs=(), objective=Objective(exponent=self.exponent)))
            self.cluster()
            self.make_rules()
            NodeSupply(self.make_autoscaler(self.make_policy()), self.cluster())
        except (SimulationError, InvalidProblemError) as error:
            raise UsageError(str(error)) from None

    @property
    def label(self) -> str:
        """The name of the policy in tables and plots."""
        if self.name is not None:
            return self.name
        if self.policy != "pollux":
            return self.policy
        return self.objective + (" (declared)" if self.declared else "") + (" (kinds)" if self.kinds else "")

    def cluster(self) -> Cluster:
        return Cluster(
            num_nodes=self.num_nodes,
            gpus_per_node=self.gpus_per_node,
            groups=self.groups,
            interval_s=self.interval_s,
            restart_delay_s=self.restart_delay_s,
        )

    def make_rules(self) -> Rules:
        if self.rules != "slurm":
            return Rules(
                name=self.rules,
                in_place=self.in_place,
                interference=self.interference,
                noise=self.noise,
                seed=self.seed,
            )
        slurm = self.slurm
        delays = Delays() if slurm.delays is None else slurm.delays.as_delays()
        return slurm_rules(
            delays=delays
            if slurm.requeue_s is None
            else dataclasses.replace(delays, requeue_s=slurm.requeue_s),
            in_place=self.in_place,
            unmanaged_jobs=draw_unmanaged_jobs(
                seed=self.seed,
                share=slurm.unmanaged_share,
                num_gpus=self.cluster().num_gpus,
                hours=slurm.unmanaged_hours,
            ),
            failures=None if slurm.mtbf_s is None else Failures(mtbf_s=slurm.mtbf_s, repair_s=slurm.repair_s),
            checkpoint_interval_s=slurm.checkpoint_interval_s,
            # Under policy `slurm`, all jobs are in one queue, unmanaged ones included.
            adaptive_share=0.0 if self.policy == "slurm" else slurm.adaptive_share,
            interference=self.interference,
            noise=self.noise,
            # The other policies place every job themselves.
            slurm_starts=self.policy in ("pollux", "genetic"),
            seed=self.seed,
        )

    def make_autoscaler(self, policy: SchedulingPolicy) -> Autoscaler | None:
        """Return the autoscaler. Raises `UsageError` for a policy that does not predict goodput."""
        if self.scaling is None:
            return None
        if not isinstance(policy, PolluxPolicy):
            raise UsageError(f"policy {self.policy} cannot size a cluster: only pollux predicts goodput")
        return UtilityAutoscaler(
            policy,
            low=self.scaling.low,
            high=self.scaling.high,
            limits=ScalingLimits(min_nodes=self.scaling.min_nodes, boot_s=self.scaling.boot_s),
        )

    def make_policy(self) -> SchedulingPolicy:
        """Return a new policy; a policy has the state of one run."""
        if self.policy == "sia" and self.exponent is not None:
            return SiaPolicy(power=self.exponent)
        if self.policy == "external":
            if not self.command:
                raise UsageError('policy external needs its command, such as ["python3", "mine.py"]')
            return ExternalPolicy(self.command, time_limit_s=self.time_limit_s, user_batch=self.user_batch)
        if self.policy in SHARING:
            if self.sharing is None:
                raise UsageError(f"policy {self.policy} needs the rates of pairs: sharing = FILE")
            rates = _pair_rates(self.sharing)
            if self.policy == "antman":
                return AntManPolicy(rates, guaranteed=self.guaranteed)
            return GandivaPolicy(rates)
        if self.policy != "pollux":
            return make_policy(self.policy, objective=self.objective, declared=self.declared)
        objective = Objective(name=self.objective)
        return PolluxPolicy(
            Objective(
                name=self.objective,
                exponent=objective.exponent if self.exponent is None else self.exponent,
                penalty=objective.penalty if self.penalty is None else self.penalty,
                between=self.between,
            ),
            declared=self.declared,
            kinds=self.kinds,
            share_half_life_s=self.share_half_life_s,
        )


@functools.lru_cache(maxsize=4)
def _pair_rates(file: str) -> PairRates:
    return PairRates(read_pair_rates(Path(file)))


def parse_nodes(text: str) -> tuple[int, int, tuple[NodeGroup, ...]]:
    """Parse nodes such as `16x4`, or groups of GPU types such as `8x4:t4 + 4x8:a100=2.5,bert=3`.

    Return the number of nodes, their GPUs, and the groups, none for nodes without a type. A group has nodes ×
    GPUs, type, speed, and speeds of single applications. Raises `UsageError`.
    """
    plain = re.fullmatch(r"\s*([0-9]{1,6})\s*x\s*([0-9]{1,4})\s*", text)
    if plain is not None and int(plain[1]) and int(plain[2]):
        return int(plain[1]), int(plain[2]), ()
    groups = tuple(_parse_group(part.strip()) for part in text.split("+"))
    return sum(one.num_nodes for one in groups), max(one.gpus_per_node for one in groups), groups


def _parse_group(text: str) -> NodeGroup:
    first, *others = text.split(",")
    found = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,4}):([A-Za-z0-9_.-]+)(?:=([0-9.eE+-]+))?", first)
    try:
        if found is None:
            raise ValueError
        speeds = {name: float(speed) for name, _, speed in (one.rpartition("=") for one in others) if name}
        if len(speeds) < len(others):
            raise ValueError
        return NodeGroup(
            num_nodes=int(found[1]),
            gpus_per_node=int(found[2]),
            gpu_type=found[3],
            speed=float(found[4]) if found[4] else None,
            speeds=tuple(speeds.items()),
        )
    except ValueError:
        raise UsageError(
            f"nodes are {text!r}; expected nodes x GPUs such as 16x4, or types such as 8x4:t4, 4x8:a100=2.5 "
            "or 4x8:a100=2.5,bert=3 (nodes x GPUs:type=speed,application=speed), with + between them"
        ) from None
    except SimulationError as error:
        raise UsageError(f"nodes are {text!r}: {error}") from None


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UsageError(f"unknown {what} {value!r}; there are {', '.join(known)}")
