"""Sweeps: one simulation for each combination of loads, seeds, delays and policies, stored in a folder.

The folder contains sweep.json (what all runs share) and runs/NAME.json for each finished run. So an
interrupted sweep can be continued, and a sweep with more loads or seeds only runs the new ones.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pollux_slurm.errors import TraceError, UsageError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.simulator.engine.cluster_rules import InPlace
from pollux_slurm.simulator.experiments.runs import OnDone, RunSpec, run_each
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.generate import generate_workload, tuned_choices
from pollux_slurm.simulator.inputs.workload import WorkloadJob
from pollux_slurm.simulator.results.files import make_folder, summary_as_dict, write_text

_FORMAT = 2
# The objectives and policies that use the exponent, and those that use the form of the penalty.
_WITH_EXPONENT = frozenset({"generalized-mean", "sia"})
_WITH_PENALTY = frozenset({"generalized-mean", "attained-work"})
_MEANS = ("p50_jct_s", "p99_jct_s", "makespan_s", "restarts_per_job", "regroups_per_job", "restart_share")
_AXES = {
    "workload": "workload",
    "load": "load",
    "interval_s": "interval (s)",
    "restart_delay_s": "delay (s)",
    "adaptive_share": "adaptive",
    "in_place_share": "in place",
    "exponent": "p",
    "penalty": "penalty",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The axes of a sweep. Workloads are those of `files`, by name, else one for each load and seed.

    `settings` has one entry for each policy; the axes replace its interval, restart delay, share of jobs that
    can be moved in place, exponent and penalty. None among `exponents` or `penalties` is the objective's
    default.
    """

    settings: tuple[RunSettings, ...]
    loads: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = (0,)
    hours: float = 8.0
    files: Mapping[str, tuple[WorkloadJob, ...]] = dataclasses.field(default_factory=dict)
    intervals_s: tuple[float, ...] = (60.0,)
    restart_delays_s: tuple[float, ...] = (30.0,)
    adaptive_shares: tuple[float, ...] = (1.0,)
    in_place_shares: tuple[float, ...] = (0.0,)
    exponents: tuple[float | None, ...] = (None,)
    penalties: tuple[str | None, ...] = (None,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One combination of a sweep. `load` and `seed` are None for a workload from a file."""

    workload: str
    load: float | None
    seed: int | None
    jobs: tuple[WorkloadJob, ...]
    settings: RunSettings

    @property
    def name(self) -> str:
        """A file name made of the combination; it ends in a digest of all settings and jobs."""
        settings = self.settings
        parts = [self.workload, re.sub(r" \((\w+)\)", r"-\1", settings.label)]
        parts += [f"interval{settings.interval_s:g}", f"delay{settings.restart_delay_s:g}"]
        parts += [f"adaptive{settings.slurm.adaptive_share:g}"] if settings.rules == "slurm" else []
        parts += [f"inplace{settings.in_place.share:g}"] if settings.in_place is not None else []
        parts += [f"p{settings.exponent:g}"] if settings.exponent is not None else []
        parts += [settings.penalty] if settings.penalty is not None else []
        known = json.dumps([dataclasses.asdict(settings), [dataclasses.asdict(job) for job in self.jobs]])
        parts.append(hashlib.sha256(known.encode()).hexdigest()[:10])
        # Parts are cut, so that the name is short enough for any file system.
        return "_".join("".join(c if c.isalnum() or c in ".-" else "-" for c in part[:60]) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """One finished run of a sweep: its values on the axes, and its summary as `--json` prints it."""

    workload: str
    load: float | None
    seed: int | None
    label: str
    interval_s: float
    restart_delay_s: float
    adaptive_share: float
    in_place_share: float
    exponent: float | None
    penalty: str | None
    summary: Mapping[str, Any]

    @property
    def group_key(self) -> tuple[float | str | None, ...]:
        """The values on all axes but seed and policy; runs with one key are averaged over the seeds."""
        place = self.workload if self.load is None else None
        return (place, self.load, *self.comparison_key[1:], self.exponent, self.penalty)

    @property
    def comparison_key(self) -> tuple[str, float, float, float, float]:
        """The values at which policies are compared: the axes that all policies have."""
        shares = (self.adaptive_share, self.in_place_share)
        return (self.workload, self.interval_s, self.restart_delay_s, *shares)


def expand(grid: Grid, applications: Mapping[str, Application]) -> tuple[SweepRun, ...]:
    """Return the runs of a grid in the order of its axes, each once; not all policies use all axes.

    Raises `UsageError` for a grid without runs or with impossible numbers.
    """
    if len(set(grid.restart_delays_s)) > 1 and any(one.rules == "slurm" for one in grid.settings):
        raise UsageError("rules slurm have no restart delay: the parts of a move have delays of their own")
    names = {one.objective if one.policy == "pollux" else one.policy for one in grid.settings}
    for values, what, known in (
        (grid.exponents, "exponents", _WITH_EXPONENT),
        (grid.penalties, "forms of the penalty", _WITH_PENALTY),
    ):
        if any(value is not None for value in values) and names and not names & known:
            raise UsageError(f"{what} would do nothing: only {' and '.join(sorted(known))} use them")
    workloads: list[tuple[str, float | None, int | None, tuple[WorkloadJob, ...]]] = [
        (name, None, None, jobs) for name, jobs in grid.files.items()
    ]
    if not workloads:
        choices = {name: tuned_choices(application) for name, application in applications.items()}
        num_gpus = max((one.cluster().num_gpus for one in grid.settings), default=1)
        for load, seed in itertools.product(grid.loads, grid.seeds):
            jobs = generate_workload(
                seed=seed, load=load, hours=grid.hours, num_gpus=num_gpus, choices=choices
            )
            workloads.append((f"load{load:g}-seed{seed}", load, seed, jobs))
    runs: dict[str, SweepRun] = {}
    axes = list(
        itertools.product(
            *(grid.intervals_s, grid.restart_delays_s, grid.adaptive_shares, grid.in_place_shares),
            *(grid.exponents, grid.penalties),
        )
    )
    for made, place, base in itertools.product(workloads, axes, grid.settings):
        interval_s, delay_s, share, in_place_share, exponent, penalty = place
        name = base.objective if base.policy == "pollux" else base.policy
        settings = dataclasses.replace(
            base,
            interval_s=interval_s,
            restart_delay_s=delay_s,
            slurm=dataclasses.replace(base.slurm, adaptive_share=share),
            in_place=dataclasses.replace(base.in_place or InPlace(), share=in_place_share)
            if in_place_share
            else None,
            exponent=exponent if name in _WITH_EXPONENT else None,
            penalty=penalty if name in _WITH_PENALTY else None,
        )
        run = SweepRun(workload=made[0], load=made[1], seed=made[2], jobs=made[3], settings=settings)
        runs.setdefault(run.name, run)
    if not runs:
        raise UsageError("a sweep needs at least one value on each axis")
    return tuple(runs.values())


def run_sweep(
    runs: Sequence[SweepRun],
    folder: Path,
    traces: Path,
    applications: Mapping[str, Application],
    *,
    shared: Mapping[str, Any],
    num_processes: int = 1,
    on_done: OnDone = lambda num_done, text: None,
) -> tuple[SweepResult, ...]:
    """Run those of `runs` that `folder` does not contain yet, and return the results of all in order.

    `shared` is what all runs of the folder have in common, beside the traces, as plain JSON. Raises
    `UsageError` if the folder contains a sweep with another `shared`, or files that are not runs.
    """
    _prepare_folder(folder, {"format": _FORMAT, "traces": traces_digest(traces), **shared})
    results = {run.name: _read(_file(folder, run), run) for run in runs if _file(folder, run).exists()}
    missing = [run for run in runs if run.name not in results]
    specs = [RunSpec(workload=run.workload, jobs=run.jobs, settings=run.settings) for run in missing]
    order = {run.name: index for index, run in enumerate(runs)}
    on_done(len(results), "")
    known = len(results)
    ended = run_each(
        specs,
        traces,
        applications,
        num_processes=num_processes,
        on_done=lambda num_done, text: on_done(known + num_done, text),
    )
    for index, outcome in ended:
        run, summary = missing[index], summary_as_dict(outcome.summary)
        place = _place(run)
        content = {"order": order[run.name], "run": place, "summary": summary}
        write_text(_file(folder, run), json.dumps(content, indent=1) + "\n")
        results[run.name] = SweepResult(**place, summary=summary)
    return tuple(results[run.name] for run in runs)


def read_sweep(folder: Path) -> tuple[SweepResult, ...]:
    """Return all finished runs of a folder, in the order of the axes.

    Raises `UsageError` for a folder without a sweep.
    """
    if not (folder / "sweep.json").is_file():
        raise UsageError(f"{folder} contains no sweep (no sweep.json): run pollux simulate sweep first")
    found = [(_order(file), _result(file)) for file in sorted((folder / "runs").glob("*.json"))]
    return tuple(result for _, result in sorted(found, key=lambda pair: pair[0]))


def traces_digest(traces: Path) -> str:
    """Return a digest of all files of the traces. Raises `TraceError`."""
    found = hashlib.sha256()
    try:
        if traces.is_file():
            found.update(traces.read_bytes())
        for file in sorted(traces.glob("*/*.csv")):
            found.update(str(file.relative_to(traces)).encode() + b"\0" + file.read_bytes() + b"\0")
    except OSError as error:
        raise TraceError(f"{error.filename}: {error.strerror}") from None
    return found.hexdigest()


def table_rows(results: Iterable[SweepResult]) -> list[dict[str, Any]]:
    """Return a row for each combination and policy: means over the seeds, `ratio` to the first policy.

    `lowest_avg_jct_s` and `highest_avg_jct_s` are the seeds' extremes; `rho_worst` is the worst of all seeds.
    """
    groups: dict[tuple[Any, ...], list[SweepResult]] = {}
    first: dict[tuple[Any, ...], float] = {}
    for result in results:
        first.setdefault(result.comparison_key, result.summary["avg_jct_s"])
        groups.setdefault((*result.group_key, result.label), []).append(result)
    rows = []
    for found in groups.values():
        one = found[0]
        numbers = [result.summary for result in found]
        averages = [number["avg_jct_s"] for number in numbers]
        ratios = [result.summary["avg_jct_s"] / first[result.comparison_key] for result in found]
        rhos = [number["rho_worst"] for number in numbers if number["rho_worst"] is not None]
        rows.append(
            {
                "workload": one.workload if one.load is None else None,
                "load": one.load,
                "interval_s": one.interval_s,
                "restart_delay_s": one.restart_delay_s,
                "adaptive_share": one.adaptive_share,
                "in_place_share": one.in_place_share,
                "exponent": one.exponent,
                "penalty": one.penalty,
                "policy": one.label,
                "num_runs": len(found),
                "avg_jct_s": float(np.mean(averages)),
                "ratio": float(np.mean(ratios)),
                "lowest_avg_jct_s": min(averages),
                "highest_avg_jct_s": max(averages),
                **{name: float(np.mean([number[name] for number in numbers])) for name in _MEANS},
                "rho_worst": max(rhos, default=None),
            }
        )
    return rows


def varying_axes(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the axes on which rows of `table_rows` differ, with their titles."""
    return {name: title for name, title in _AXES.items() if len({row[name] for row in rows}) > 1}


def axis_text(value: float | str | None) -> str:
    """Format a value on an axis."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:g}"


def run_rows(results: Iterable[SweepResult]) -> list[dict[str, Any]]:
    """Return a flat row for each run."""
    rows = []
    for result in results:
        place = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        summary = dict(place.pop("summary"))
        numbers = {name: value for name, value in summary.items() if not isinstance(value, dict)}
        rows.append(place | {name: value for name, value in numbers.items() if name not in place})
    return rows


def _prepare_folder(folder: Path, shared: Mapping[str, Any]) -> None:
    make_folder(folder)
    file = folder / "sweep.json"
    if not file.exists():
        # A sweep that was killed during its first write leaves a partial file.
        if any(not found.name.endswith(".partial") for found in folder.iterdir()):
            raise UsageError(f"{folder} is not empty and contains no sweep: choose another folder")
        write_text(file, json.dumps(shared, indent=1) + "\n")
    else:
        stored = _load(file, then="choose another folder")
        for name in {**stored, **shared}:
            if stored.get(name) != shared.get(name):
                values = f" ({stored.get(name)}, now {shared.get(name)})" if name != "traces" else ""
                raise UsageError(
                    f"{folder} contains a sweep with other {name}{values}: choose another folder for this one"
                )
    make_folder(folder / "runs")


def _file(folder: Path, run: SweepRun) -> Path:
    return folder / "runs" / f"{run.name}.json"


def _place(run: SweepRun) -> dict[str, Any]:
    settings = run.settings
    return {
        "workload": run.workload,
        "load": run.load,
        "seed": run.seed,
        "label": settings.label,
        "interval_s": settings.interval_s,
        "restart_delay_s": settings.restart_delay_s,
        "adaptive_share": settings.slurm.adaptive_share,
        "in_place_share": 0.0 if settings.in_place is None else settings.in_place.share,
        "exponent": settings.exponent,
        "penalty": settings.penalty,
    }


def _read(file: Path, run: SweepRun) -> SweepResult:
    result = _result(file)
    if result != SweepResult(**_place(run), summary=result.summary):
        raise UsageError(f"{file} is not a run of this sweep: remove it and run the sweep again")
    return result


def _order(file: Path) -> float:
    order = _load(file).get("order")
    return order if isinstance(order, int) else 0


def _result(file: Path) -> SweepResult:
    found = _load(file)
    place, summary = found.get("run"), found.get("summary")
    fields = {field.name for field in dataclasses.fields(SweepResult)} - {"summary"}
    numbers = summary if isinstance(summary, dict) else {}
    has_numbers = all(isinstance(numbers.get(name), (int, float)) for name in ("avg_jct_s", *_MEANS))
    if not (isinstance(place, dict) and set(place) == fields and has_numbers and "rho_worst" in numbers):
        raise UsageError(f"{file} is not a run of a sweep: remove it and run the sweep again")
    return SweepResult(**place, summary=numbers)


def _load(file: Path, *, then: str = "remove it and run the sweep again") -> dict[str, Any]:
    try:
        found = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file} ({error}): {then}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{file} is no JSON object: {then}")
    return found
