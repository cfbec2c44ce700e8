"""The runs of an experiment, kept in a folder, where none is run twice; and its rows, means over runs.

The folder contains experiment.json (format and traces) and runs/NAME.json for each finished run. So an
interrupted experiment can be continued, and one with more loads or seeds runs the new ones only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pollux_slurm.errors import TraceError, UsageError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.simulator.experiments.bounds import bounds_of
from pollux_slurm.simulator.experiments.runs import OnDone, RunSpec, run_each
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.workload import WorkloadJob
from pollux_slurm.simulator.results.files import (
    csv_text,
    make_folder,
    summary_as_dict,
    write_results,
    write_text,
)
from pollux_slurm.simulator.results.summary import RunOutcome

_FORMAT = 3
# The file of a folder; sweep.json is that of format 2, whose runs have other names for some axes.
_FILE, _OLD_FILE = "experiment.json", "sweep.json"
_OLD_NAMES = {"adaptive_share": "adaptive", "in_place_share": "in_place", "exponent": "p"}
_MEANS = (
    *("p50_jct_s", "p90_jct_s", "p99_jct_s", "makespan_s", "gpu_hours"),
    *("restarts_per_job", "regroups_per_job", "restart_share"),
)
# What a policy alone has: policies are compared at equal values of all other axes.
_OF_POLICY = frozenset({"p", "penalty", "between", "share_half_life"})
_TITLES = {
    "interval_s": "interval (s)",
    "restart_delay_s": "delay (s)",
    "in_place": "in place",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRun:
    """One run of an experiment. `load` and `seed` are None for a workload that was read.

    `place` has the run's value of each key of `Point`, and of its policy's that are axes.
    """

    workload: str
    load: float | None
    seed: int | None
    jobs: tuple[WorkloadJob, ...]
    settings: RunSettings
    place: Mapping[str, Any]
    has_bound: bool = False

    @property
    def name(self) -> str:
        """A file name made of workload and policy; it ends in a digest of all settings and jobs."""
        known = json.dumps(
            [dataclasses.asdict(self.settings), [dataclasses.asdict(job) for job in self.jobs]]
        )
        digest = hashlib.sha256(known.encode()).hexdigest()[:12]
        # Parts are cut, so that the name is short enough for any file system.
        parts = (self.workload, self.settings.label, digest)
        return "_".join("".join(c if c.isalnum() or c in ".-" else "-" for c in part[:60]) for part in parts)

    @property
    def spec(self) -> RunSpec:
        return RunSpec(workload=self.workload, jobs=self.jobs, settings=self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """A finished run: its values on the axes, and its summary as `--json` prints it.

    `outcome` has its jobs and rounds, where it was run just now.
    """

    workload: str
    load: float | None
    seed: int | None
    label: str
    place: Mapping[str, Any]
    summary: Mapping[str, Any]
    outcome: RunOutcome | None = None

    @property
    def group_key(self) -> tuple[Any, ...]:
        """The values on all axes but seed; runs with one key are averaged over the seeds."""
        name = self.workload if self.load is None else None
        return (name, self.load, self.label, *sorted(self.place.items(), key=lambda item: item[0]))

    @property
    def comparison_key(self) -> tuple[Any, ...]:
        """The values at which policies are compared: the workload, and the axes that all policies have."""
        shared = ((name, value) for name, value in self.place.items() if name not in _OF_POLICY)
        return (self.workload, *sorted(shared, key=lambda item: item[0]))


def run_experiment(
    runs: Sequence[ExperimentRun],
    folder: Path | None,
    traces: Path,
    applications: Mapping[str, Application],
    *,
    num_processes: int = 1,
    keeps_outcomes: bool = True,
    on_done: OnDone = lambda num_done, text: None,
) -> tuple[KeptRun, ...]:
    """Run those of `runs` that `folder` does not contain yet, and return all in order.

    Bounds are computed after the runs that have one. With `keeps_outcomes`, what is run now has its jobs and
    rounds. Raises `UsageError` if the folder contains something
    else, or results of other traces.
    """
    results: dict[str, KeptRun] = {}
    if folder is not None:
        _prepare_folder(folder, {"format": _FORMAT, "traces": traces_digest(traces)})
        results = {run.name: _read(_file(folder, run), run) for run in runs if _file(folder, run).exists()}
    missing = [run for run in runs if run.name not in results]
    order = {run.name: index for index, run in enumerate(runs)}
    known = len(results)
    on_done(known, "")

    def keep(run: ExperimentRun, outcome: RunOutcome | None, summary: Mapping[str, Any]) -> None:
        kept = KeptRun(**_place(run), summary=summary, outcome=outcome)
        if folder is not None:
            content = {"order": order[run.name], "run": _place(run), "summary": summary}
            write_text(_file(folder, run), json.dumps(content, indent=1) + "\n")
        results[run.name] = kept

    ended = run_each(
        [run.spec for run in missing],
        traces,
        applications,
        num_processes=num_processes,
        on_done=lambda num_done, text: on_done(known + num_done, text),
    )
    for index, outcome in ended:
        keep(missing[index], outcome if keeps_outcomes else None, summary_as_dict(outcome.summary))
    unbounded = [
        run for run in runs if run.has_bound and results[run.name].summary.get("bound_avg_jct_s") is None
    ]
    specs = [run.spec for run in unbounded]
    for index, bound_s in bounds_of(specs, traces, applications, num_processes):
        run = unbounded[index]
        one = results[run.name]
        known_outcome = one.outcome
        if known_outcome is not None:
            summary = replace(known_outcome.summary, bound_avg_jct_s=bound_s)
            known_outcome = replace(known_outcome, summary=summary)
        keep(run, known_outcome, {**one.summary, "bound_avg_jct_s": bound_s})
    return tuple(results[run.name] for run in runs)


def missing_runs(
    runs: Sequence[ExperimentRun], folder: Path | None, traces: Path
) -> tuple[ExperimentRun, ...]:
    """Return the runs that `folder` does not contain, and prepare it. Raises `UsageError`."""
    if folder is None:
        return tuple(runs)
    _prepare_folder(folder, {"format": _FORMAT, "traces": traces_digest(traces)})
    return tuple(run for run in runs if not _file(folder, run).exists())


def write_tables(folder: Path, results: Sequence[KeptRun]) -> None:
    """Write table.csv, runs.csv and summary.json, and jobs.csv and rounds.csv where all were run just now."""
    write_text(folder / "table.csv", csv_text(table_rows(results)))
    write_text(folder / "runs.csv", csv_text(run_rows(results)))
    outcomes = [one.outcome for one in results if one.outcome is not None]
    write_results(folder, [one.summary for one in results], outcomes if len(outcomes) == len(results) else ())


def read_folder(folder: Path) -> tuple[KeptRun, ...]:
    """Return all finished runs of a folder, in the order of the axes.

    Raises `UsageError` for a folder without results.
    """
    if not ((folder / _FILE).is_file() or (folder / _OLD_FILE).is_file()):
        raise UsageError(
            f"{folder} contains no results (no {_FILE}): run pollux simulate FILE --output {folder} first"
        )
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


def table_rows(results: Iterable[KeptRun]) -> list[dict[str, Any]]:
    """Return a row for each combination and policy: means over the seeds, `ratio` to the first policy.

    `lowest_avg_jct_s` and `highest_avg_jct_s` are the seeds' extremes; `rho_worst` is the worst of all seeds.
    Where results of other versions lack a number, it is None.
    """
    groups: dict[tuple[Any, ...], list[KeptRun]] = {}
    first: dict[tuple[Any, ...], float] = {}
    for result in results:
        first.setdefault(result.comparison_key, result.summary["avg_jct_s"])
        groups.setdefault(result.group_key, []).append(result)
    rows = []
    for found in groups.values():
        one = found[0]
        averages = [result.summary["avg_jct_s"] for result in found]
        ratios = [result.summary["avg_jct_s"] / first[result.comparison_key] for result in found]
        rows.append(
            {
                "workload": one.workload if one.load is None else None,
                "load": one.load,
                **one.place,
                "policy": one.label,
                "num_runs": len(found),
                "avg_jct_s": float(np.mean(averages)),
                "ratio": float(np.mean(ratios)),
                "lowest_avg_jct_s": min(averages),
                "highest_avg_jct_s": max(averages),
                **{name: _mean(found, name) for name in _MEANS},
                "node_hours": _mean_of(
                    [sum(result.summary.get("node_hours", {}).values()) for result in found]
                ),
                "bound_avg_jct_s": _mean(found, "bound_avg_jct_s"),
                "rho_worst": max(_numbers(found, "rho_worst"), default=None),
                "rho_share_above_1": _mean(found, "rho_share_above_1"),
                **{name: sum(_numbers(found, name)) for name in ("num_asked", "num_accepted", "num_kept")},
                "solve_p95_s": max(result.summary.get("solve_s", {}).get("p95", 0.0) for result in found),
            }
        )
    return rows


def _numbers(found: Sequence[KeptRun], name: str) -> list[float]:
    return [value for one in found if (value := one.summary.get(name)) is not None]


def _mean(found: Sequence[KeptRun], name: str) -> float | None:
    """Return the mean of a number of the summaries, None where one lacks it."""
    values = _numbers(found, name)
    return _mean_of(values) if len(values) == len(found) else None


def _mean_of(values: Sequence[float]) -> float:
    return float(np.mean(values))


def varying_axes(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the axes on which rows of `table_rows` differ, with their titles."""
    names = [name for name in (rows[0] if rows else {}) if name != "policy"]
    names = names[: names.index("num_runs")] if names else []
    return {
        name: _TITLES.get(name, name.replace("_", " "))
        for name in names
        if len({row.get(name) for row in rows}) > 1
    }


def axis_text(value: float | str | None) -> str:
    """Format a value on an axis."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:g}"


def run_rows(results: Iterable[KeptRun]) -> list[dict[str, Any]]:
    """Return a flat row for each run."""
    rows = []
    for result in results:
        place = {"workload": result.workload, "load": result.load, "seed": result.seed, "label": result.label}
        place |= result.place
        numbers = {name: value for name, value in result.summary.items() if not isinstance(value, dict)}
        rows.append(place | {name: value for name, value in numbers.items() if name not in place})
    return rows


def _prepare_folder(folder: Path, shared: Mapping[str, Any]) -> None:
    make_folder(folder)
    file = folder / _FILE
    if not file.exists():
        # An experiment that was killed during its first write leaves a partial file.
        if any(not found.name.endswith(".partial") for found in folder.iterdir()):
            raise UsageError(f"{folder} is not empty and contains no {_FILE}: choose another folder")
        write_text(file, json.dumps(shared, indent=1) + "\n")
    else:
        stored = _load(file, then="choose another folder")
        for name in {**stored, **shared}:
            if stored.get(name) != shared.get(name):
                raise UsageError(
                    f"{folder} contains results of other {name}: choose another folder for this experiment"
                )
    make_folder(folder / "runs")


def _file(folder: Path, run: ExperimentRun) -> Path:
    return folder / "runs" / f"{run.name}.json"


def _place(run: ExperimentRun) -> dict[str, Any]:
    return {
        "workload": run.workload,
        "load": run.load,
        "seed": run.seed,
        "label": run.settings.label,
        "place": dict(run.place),
    }


def _read(file: Path, run: ExperimentRun) -> KeptRun:
    result = _result(file)
    if result != KeptRun(**_place(run), summary=result.summary):
        raise UsageError(f"{file} is not a run of this experiment: remove it and run the experiment again")
    return result


def _order(file: Path) -> float:
    order = _load(file).get("order")
    return order if isinstance(order, int) else 0


def _result(file: Path) -> KeptRun:
    found = _load(file)
    run, summary = found.get("run"), found.get("summary")
    names = ("workload", "load", "seed", "label")
    numbers = summary if isinstance(summary, dict) else {}
    has_numbers = isinstance(numbers.get("avg_jct_s"), int | float) and "rho_worst" in numbers
    if not (isinstance(run, dict) and all(name in run for name in names) and has_numbers):
        raise UsageError(f"{file} is not a run of an experiment: remove it and run the experiment again")
    place = run.get("place")
    if not isinstance(place, dict):  # format 2
        place = {_OLD_NAMES.get(name, name): value for name, value in run.items() if name not in names}
    return KeptRun(**{name: run[name] for name in names}, place=place, summary=numbers)


def _load(file: Path, *, then: str = "remove it and run the experiment again") -> dict[str, Any]:
    try:
        found = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file} ({error}): {then}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{file} is not a JSON object: {then}")
    return found
