"""Experiments: which simulations to run, from a TOML file, from options, or from both.

    traces = "traces"
    load = [0.5, 1]
    seed = [1, 2, 3]
    rules = "slurm"
    nodes = ["16x4", "8x4:t4 + 4x8:a100=2.5"]
    adaptive = [1, 0.2]
    policy = ["tiresias", {name = "pollux", objective = ["osdi21", "attained-work"]}]

A key of `Point` or `PolicyChoice` has one value, or a list of them: then it is an axis. Axes are crossed;
with `axes = "alone"`, each is varied by itself, from the first values of all others. An option replaces the
file's key of its name. Paths in a file are relative to its folder.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pollux_slurm.config import TomlText, choice, convert, number, setting
from pollux_slurm.durations import DURATION_FORMS, parse_duration
from pollux_slurm.errors import ConfigError, UsageError
from pollux_slurm.policy.objectives.registry import OBJECTIVES
from pollux_slurm.policy.participation.user_shares import SHARES_BETWEEN
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.cluster_rules import RULES, InPlace
from pollux_slurm.simulator.engine.measurements import MeasurementNoise
from pollux_slurm.simulator.experiments.kept_runs import ExperimentRun
from pollux_slurm.simulator.experiments.settings import (
    RunSettings,
    ScalingSettings,
    SlurmSettings,
    parse_nodes,
)
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.generate import generate_workload, tuned_choices
from pollux_slurm.simulator.inputs.rate_tables import is_rate_table
from pollux_slurm.simulator.inputs.workload import WorkloadJob, read_workloads
from pollux_slurm.simulator.policies import POLICIES, SHARING
from pollux_slurm.simulator.site.measured_jobs import MeasuredDelays, read_queue, workload_of

_LONGEST_S = 30 * 86400.0
_Part = TypeVar("_Part", bound="Point | PolicyChoice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The rules and the cluster of a run. Times in seconds, shares from 0 to 1."""

    rules: str = choice("`osdi21`, as in the paper's artifact, or `slurm`, as in Slurm", *RULES)
    nodes: str = setting(
        "nodes x GPUs, such as `16x4`; of several types `8x4:t4 + 4x8:a100=2.5,bert=3`, with speeds relative "
        "to placements.csv where traces have no placements-TYPE.csv",
        "16x4",
    )
    interval_s: float = number("between two decisions", 60.0, 1e-3, _LONGEST_S)
    restart_delay_s: float = number(
        "without progress after a move; under rules `slurm` what is expected of a job's first move",
        30.0,
        0.0,
        _LONGEST_S,
    )
    adaptive: float = number("share of the jobs that are adaptive; the others keep their GPUs", 1.0, 0.0, 1.0)
    in_place: float = number("share of the jobs that can be moved in place", 0.0, 0.0, 1.0)
    several_wings: bool = setting("in place, a job may have several wings on a node", False)
    warm_up_s: float = number("in place, how long new GPUs wait for their processes", 20.0, 0.0, _LONGEST_S)
    standstill_s: float = number(
        "in place, without progress, beside 2.3 s for each GB of state", 0.5, 0.0, _LONGEST_S
    )
    requeue_s: float | None = number(
        "from a requeue to the new start; Slurm's plain requeue takes 121", None, 0.0, _LONGEST_S
    )
    delays: str | None = setting("file of `pollux simulate export` whose measured delays count", None)
    unmanaged: float = number("share of the GPUs that unmanaged jobs use in the first day", 0.0, 0.0, 0.99)
    mtbf_hours: float | None = number("mean hours between failures of a node", None, 1e-3, 1e9)
    interference: float = number(
        "share of its speed that a job on several nodes loses beside another such job", 0.0, 0.0, 0.99
    )
    measurement_noise: float = number(
        "standard deviation of the logarithm of measured step times", 0.0, 0.0, 2.0
    )
    measurement_outliers: float = number(
        "share of the minutes in which agents measure ten times the true step time", 0.0, 0.0, 1.0
    )
    sharing: str | None = setting(
        "file with the rates of two jobs on a GPU, for `gandiva` and `antman`", None
    )
    rules_seed: int = number("of adaptive jobs, jobs in place, failures, unmanaged jobs, noise", 0, 0, 2**53)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """A policy. `p` is for `pollux` and `sia`, the next keys say for which, all others are for `pollux`."""

    name: str = choice("which policy", *POLICIES)
    label: str | None = setting("its name in tables and plots", None)
    objective: str = setting("what is maximised", "generalized-mean", choices=tuple(OBJECTIVES))
    declared: bool = setting("jobs declare how many epochs they train", False)
    kinds: bool = setting("jobs of one application tell each other what they measured", False)
    between: str = setting("who has equal shares", "users", choices=tuple(SHARES_BETWEEN))
    share_half_life: str | None = setting("of used GPUs in the shares of users, such as `7d`", None)
    p: float | None = number("exponent of `generalized-mean`, or power of `sia`", None, -1e3, 1e3)
    penalty: str | None = setting("form of the restart penalty", None, choices=("paper", "amortised"))
    command: tuple[str, ...] = setting("of `external`: program and arguments", ())
    time_limit_s: float = number("of `external`: for each answer", 10.0, 1e-3, 86400.0)
    user_batch: bool = setting("of `external`: jobs keep their user's batch size", False)
    guaranteed: float = number("of `antman`: share of the jobs that are guaranteed", 0.5, 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """Keys that count only where `where` is true of a run, and why they would do nothing elsewhere."""

    keys: tuple[str, ...]
    where: Callable[[Point, PolicyChoice], bool]
    why: str


def _draws(point: Point) -> bool:
    noise = point.measurement_noise or point.measurement_outliers
    return point.rules == "slurm" or bool(noise) or 0 < point.in_place < 1


_OF_POLLUX = ("objective", "declared", "kinds", "between", "share_half_life", "penalty")
_USES = (
    _Use(
        keys=("adaptive", "requeue_s", "delays", "unmanaged", "mtbf_hours"),
        where=lambda point, _: point.rules == "slurm",
        why='it is of rules slurm: add rules = "slurm"',
    ),
    _Use(
        keys=("in_place",),
        where=lambda _, policy: policy.name != "slurm",
        why="policy slurm moves no job",
    ),
    _Use(
        keys=("several_wings", "warm_up_s", "standstill_s"),
        where=lambda point, _: point.in_place > 0,
        why="it is of moves in place: add in_place = 1",
    ),
    _Use(
        keys=("warm_up_s",),
        where=lambda point, _: point.rules != "slurm",
        why="rules slurm have the start and launch of their delays",
    ),
    _Use(
        keys=("rules_seed",),
        where=lambda point, _: _draws(point),
        why="nothing is drawn under rules osdi21 without measurement_noise",
    ),
    _Use(
        keys=("command", "time_limit_s", "user_batch"),
        where=lambda _, policy: policy.name == "external",
        why="it is of policy external",
    ),
    _Use(
        keys=("sharing",),
        where=lambda _, policy: policy.name in SHARING,
        why="it is of policies gandiva and antman",
    ),
    _Use(
        keys=("guaranteed",),
        where=lambda _, policy: policy.name == "antman",
        why="it is of policy antman",
    ),
    _Use(
        keys=_OF_POLLUX,
        where=lambda _, policy: policy.name == "pollux",
        why="it is of policy pollux",
    ),
    _Use(
        keys=("p",),
        where=lambda _, policy: (
            policy.name == "sia" or (policy.name == "pollux" and policy.objective == "generalized-mean")
        ),
        why="only generalized-mean and sia have an exponent",
    ),
    _Use(
        keys=("penalty",),
        where=lambda _, policy: policy.objective in ("generalized-mean", "attained-work"),
        why="only generalized-mean and attained-work have two forms of it",
    ),
    _Use(
        keys=("share_half_life",),
        where=lambda _, policy: policy.between != "jobs",
        why='jobs have no memory: leave out between = "jobs"',
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is simulated: each of `points` with each of `policies` on each workload.

    Workloads are those of `files`, else the queue that `traces` are, else generated: one for each of `loads`
    and `seeds`, of `hours`. With `bound`, what no policy's average is below is computed, too. `scaling` lets
    clusters grow and shrink. `where` returns the place of a key for messages.
    """

    traces: Path
    files: tuple[Path, ...] = ()
    loads: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = (0,)
    hours: float = 8.0
    points: tuple[Point, ...] = (Point(),)
    policies: tuple[PolicyChoice, ...] = (PolicyChoice(),)
    alone: bool = False
    bound: bool = False
    scaling: ScalingSettings | None = None
    given: frozenset[str] = frozenset()
    where: Callable[..., str] = field(default=lambda *path: ".".join(map(str, path)), repr=False)


_LISTS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "load": (float, {"least": 1e-3, "most": 1e3, "below": False}),
    "seed": (int, {"least": 0, "most": 2**53, "below": False}),
    "workload": (str, {}),
}
_SINGLE: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "traces": (str, {}),
    "hours": (float, {"least": 1e-3, "most": 1e6, "below": False}),
    "bound": (bool, {}),
    "axes": (str, {"choices": ("crossed", "alone")}),
}


def read_experiment(file: Path | None, options: Mapping[str, Any]) -> Experiment:
    """Return the experiment of `file`, with `options` instead of its keys of their names.

    Raises `ConfigError` or `UsageError` with line and key for anything unknown, of a wrong type, out of
    range, or without effect.
    """
    source, tables = TomlText(file=Path()), dict[str, Any]()
    if file is not None:
        source, tables = TomlText.read(file)
    for key in ("traces", "workload", "delays", "sharing"):
        if key in tables and file is not None:
            tables[key] = _beside(file, tables[key])
    if file is not None and isinstance(tables.get("policy"), list):
        tables["policy"] = [_with_program(file, entry) for entry in tables["policy"]]
    tables |= options

    def where(*path: str | int) -> str:
        return f"--{path[0]}" if path[0] in options or file is None else source.at(*path)

    points = {entry.name for entry in dataclasses.fields(Point)}
    known = [*_SINGLE, *_LISTS, "policy", "autoscale", *sorted(points)]
    for key in sorted(set(tables) - set(known)):
        raise ConfigError(f"{where(key)}: unknown key {key}; known: {', '.join(known)}")
    if not tables.get("traces"):
        raise UsageError("traces are needed: --traces DIR, or traces = ... in an experiment's file")
    single = {
        key: _value(tables[key], hint, where(key), key, rules)
        for key, (hint, rules) in _SINGLE.items()
        if key in tables
    }
    lists = {
        key: _values(tables[key], hint, where(key), key, rules)
        for key, (hint, rules) in _LISTS.items()
        if key in tables
    }
    alone = single.get("axes") == "alone"
    axes = _axes(Point, {key: tables[key] for key in points & set(tables)}, where)
    loads = lists.get("load", (1.0,))
    made = Experiment(
        traces=Path(single["traces"]),
        files=tuple(map(Path, lists.get("workload", ()))),
        loads=loads,
        seeds=lists.get("seed", (0,)),
        hours=single.get("hours", 8.0),
        points=tuple(_alone(Point, axes) if alone else _crossed(Point, axes)),
        policies=tuple(_policies(tables.get("policy", ["pollux"]), where)),
        alone=alone,
        bound=single.get("bound", False),
        scaling=_scaling(tables["autoscale"], where) if "autoscale" in tables else None,
        given=frozenset(tables),
        where=where,
    )
    _check(made)
    return made


def _beside(file: Path, given: Any) -> Any:
    if isinstance(given, list):
        return [_beside(file, one) for one in given]
    return str(file.parent / given) if isinstance(given, str) else given


def _with_program(file: Path, entry: Any) -> Any:
    """Return a policy's table with words of its command that name files beside the experiment's."""
    if not (isinstance(entry, dict) and isinstance(entry.get("command"), list)):
        return entry
    words = [
        str((file.parent / word).absolute())
        if isinstance(word, str) and (file.parent / word).is_file()
        else word
        for word in entry["command"]
    ]
    return entry | {"command": words}


def _value(value: Any, hint: Any, place: str, key: str, rules: Mapping[str, Any]) -> Any:
    if hint is float and type(value) is int:
        value = float(value)
    try:
        return convert(value, hint, key, rules, is_text=False)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _values(given: Any, hint: Any, place: str, key: str, rules: Mapping[str, Any]) -> tuple[Any, ...]:
    found = given if isinstance(given, list) and not _is_list(hint) else [given]
    if not found:
        raise ConfigError(f"{place}: {key} is a list without values: give one, or leave the key out")
    return tuple(dict.fromkeys(_value(one, hint, place, key, rules) for one in found))


def _axes(kind: type[Any], table: Mapping[str, Any], where: Callable[..., str], *path: str | int) -> Any:
    """Return the values of each key of `kind` that the table has, in the order of the fields."""
    hints = typing.get_type_hints(kind)
    return {
        entry.name: _values(
            table[entry.name], hints[entry.name], where(*path, entry.name), entry.name, entry.metadata
        )
        for entry in dataclasses.fields(kind)
        if entry.name in table
    }


def _crossed(kind: type[_Part], axes: Mapping[str, Sequence[Any]]) -> Iterator[_Part]:
    for values in itertools.product(*axes.values()):
        yield kind(**dict(zip(axes, values, strict=True)))


def _alone(kind: type[_Part], axes: Mapping[str, Sequence[Any]]) -> Iterator[_Part]:
    """Yield the point of all first values, and then each further value of each axis at that point."""
    base = kind(**{name: values[0] for name, values in axes.items()})
    yield base
    for name, values in axes.items():
        for value in values[1:]:
            yield replace(base, **{name: value})


def _policies(given: Any, where: Callable[..., str]) -> Iterator[PolicyChoice]:
    entries = given if isinstance(given, list) else [given]
    known = [entry.name for entry in dataclasses.fields(PolicyChoice)]
    for index, entry in enumerate(entries):
        table = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(table, dict):
            raise ConfigError(f"{where('policy', index)}: expected a policy's name or table, not {entry!r}")
        for key in sorted(set(table) - set(known)):
            place = where("policy", index, key)
            raise ConfigError(f"{place}: unknown key {key} of a policy; known: {', '.join(known)}")
        yield from _crossed(PolicyChoice, _axes(PolicyChoice, table, where, "policy", index))


def _scaling(table: Any, where: Callable[..., str]) -> ScalingSettings:
    known = [entry.name for entry in dataclasses.fields(ScalingSettings)]
    if not isinstance(table, dict) or set(table) - set(known):
        raise ConfigError(f"{where('autoscale')}: autoscale is a table of {', '.join(known)}, not {table!r}")
    hints = typing.get_type_hints(ScalingSettings)
    bounds = {"least": 0, "most": 1e6, "below": False}
    return ScalingSettings(
        **{
            key: _value(value, hints[key], where("autoscale", key), key, bounds)
            for key, value in table.items()
        }
    )


def _check(experiment: Experiment) -> None:
    """Refuse given keys without effect on any run, and points that cannot be simulated."""
    pairs = list(itertools.product(experiment.points, experiment.policies))
    for use in _USES:
        for key in use.keys:
            tried = [pair for pair in pairs if _is_given(key, pair)]
            if tried and not any(use.where(*pair) for pair in tried):
                place = experiment.where(key if key in experiment.given else "policy")
                raise UsageError(f"{place}: {key} would do nothing: {use.why}")
    for point, policy in pairs:
        try:
            _settings(*_effective(point, policy), experiment.scaling)
        except UsageError as error:
            place = experiment.where("nodes") if "nodes" in experiment.given else ""
            raise UsageError(f"{place}: {error}" if place and "nodes" in str(error) else str(error)) from None
    if experiment.bound and not any(_has_bound(point) for point in experiment.points):
        raise UsageError(
            f"{experiment.where('bound')}: the bound is of rules osdi21 and moves by requeue: it holds for "
            'no run here; add rules = "osdi21"'
        )
    for key in ("load", "seed", "hours"):
        if key in experiment.given and (experiment.files or experiment.traces.is_file()):
            raise UsageError(
                f"{experiment.where(key)}: {key} would do nothing: workloads are read, not generated"
            )


def _is_given(key: str, pair: tuple[Point, PolicyChoice]) -> bool:
    """Return whether a point or policy has another value than the default for `key`."""
    return any(getattr(one, key) != getattr(type(one)(), key) for one in pair if hasattr(one, key))


def _has_bound(point: Point) -> bool:
    return point.rules == "osdi21" and not point.in_place


def _effective(point: Point, policy: PolicyChoice) -> tuple[Point, PolicyChoice]:
    """Return both with the defaults for what has no effect, so that runs that are alike are equal."""
    for use in _USES:
        if not use.where(point, policy):
            for key in use.keys:
                if hasattr(point, key):
                    point = replace(point, **{key: getattr(Point(), key)})
                else:
                    policy = replace(policy, **{key: getattr(PolicyChoice(), key)})
    return point, policy


def _settings(point: Point, policy: PolicyChoice, scaling: ScalingSettings | None) -> RunSettings:
    half_life = None if policy.share_half_life is None else parse_duration(policy.share_half_life)
    if policy.share_half_life is not None and not half_life:
        raise UsageError(f"share_half_life is {policy.share_half_life!r}; write {DURATION_FORMS}")
    in_place = None
    if point.in_place:
        in_place = InPlace(
            share=point.in_place,
            several_wings=point.several_wings,
            warm_up_s=point.warm_up_s,
            standstill_s=point.standstill_s,
        )
    num_nodes, gpus_per_node, groups = parse_nodes(point.nodes)
    return RunSettings(
        policy=policy.name,
        name=policy.label,
        objective=policy.objective,
        between=policy.between,
        share_half_life_s=None if half_life is None else half_life.total_seconds(),
        declared=policy.declared,
        kinds=policy.kinds,
        command=policy.command,
        time_limit_s=policy.time_limit_s,
        user_batch=policy.user_batch,
        guaranteed=policy.guaranteed,
        sharing=point.sharing,
        exponent=policy.p,
        penalty=policy.penalty,
        rules=point.rules,
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        groups=groups,
        interval_s=point.interval_s,
        restart_delay_s=point.restart_delay_s,
        interference=point.interference,
        noise=MeasurementNoise(spread=point.measurement_noise, outliers=point.measurement_outliers),
        in_place=in_place,
        slurm=SlurmSettings(
            adaptive_share=point.adaptive,
            requeue_s=point.requeue_s,
            unmanaged_share=point.unmanaged,
            mtbf_s=None if point.mtbf_hours is None else point.mtbf_hours * 3600,
            delays=None if point.delays is None else _delays(Path(point.delays)),
        ),
        scaling=scaling,
        seed=point.rules_seed,
    )


@functools.lru_cache(maxsize=8)
def _delays(file: Path) -> MeasuredDelays:
    found = read_queue(file).delays
    if found is None:
        raise UsageError(f"{file}: it contains no delays: none of its jobs ever started")
    return found


def expand(experiment: Experiment, applications: Mapping[str, Application]) -> tuple[ExperimentRun, ...]:
    """Return the runs of an experiment, each once; not all policies use all axes.

    Without `delays`, rules `slurm` have those of the queue that `traces` are. Raises `TraceError` for
    workloads that cannot be read.
    """
    files = read_workloads(experiment.files, applications)
    if not files and is_rate_table(experiment.traces):
        raise UsageError(f"{experiment.traces} are rates without jobs: name workloads, workload = FILE")
    if not files and experiment.traces.is_file():
        queue = read_queue(experiment.traces)
        files = {experiment.traces.stem: workload_of(queue)}
        if queue.delays is not None:
            points = tuple(
                replace(point, delays=point.delays or str(experiment.traces)) for point in experiment.points
            )
            experiment = replace(experiment, points=points)
    choices = {} if files else {name: tuned_choices(made) for name, made in applications.items()}
    runs: dict[str, ExperimentRun] = {}
    loads: Sequence[float | None] = (None,) if files else experiment.loads
    for load, base in itertools.product(loads, experiment.points):
        if experiment.alone and load != loads[0] and base != experiment.points[0]:
            continue
        for workload, seed, jobs in _workloads(experiment, load, base, files, choices):
            for chosen in experiment.policies:
                point, policy = _effective(base, chosen)
                place = dataclasses.asdict(point) | {
                    key: getattr(policy, key) for key in ("p", "penalty", "between", "share_half_life")
                }
                if experiment.scaling is not None:
                    place["autoscale"] = experiment.scaling.text
                run = ExperimentRun(
                    workload=workload,
                    load=load,
                    seed=seed,
                    jobs=jobs,
                    settings=_settings(point, policy, experiment.scaling),
                    place=place,
                    has_bound=experiment.bound and _has_bound(point) and experiment.scaling is None,
                )
                runs.setdefault(run.name, run)
    return tuple(runs.values())


def _workloads(
    experiment: Experiment,
    load: float | None,
    point: Point,
    files: Mapping[str, tuple[WorkloadJob, ...]],
    choices: Mapping[str, Any],
) -> Iterator[tuple[str, int | None, tuple[WorkloadJob, ...]]]:
    """Yield name, seed and jobs of each workload."""
    if load is None:
        for name, jobs in files.items():
            yield name, None, jobs
        return
    num_nodes, gpus_per_node, groups = parse_nodes(point.nodes)
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node, groups=groups)
    for seed in experiment.seeds:
        jobs = generate_workload(
            seed=seed,
            load=load,
            hours=experiment.hours,
            num_gpus=cluster.num_gpus,
            most_gpus=cluster.most_gpus,
            choices=choices,
        )
        yield f"load{load:g}-seed{seed}", seed, jobs
