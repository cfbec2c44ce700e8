"""The bounds of an experiment's runs: one for each workload, cluster, interval and delay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pollux_slurm.simulator.bound.dual_bound import average_bound
from pollux_slurm.simulator.experiments.runs import (
    ExperimentRun,
    OnDone,
    RunSpec,
    applications_of_worker,
    worker_pool,
)
from pollux_slurm.simulator.inputs.applications import Application


def with_bounds(
    runs: Sequence[ExperimentRun],
    traces: Path,
    applications: Mapping[str, Application],
    num_processes: int,
    *,
    on_done: OnDone,
) -> Iterator[tuple[ExperimentRun, float]]:
    """Yield each run with what no policy's average is below, as it is computed."""
    groups: dict[object, list[ExperimentRun]] = {}
    for run in runs:
        groups.setdefault((run.jobs, run.settings.cluster()), []).append(run)
    if num_processes > 1 and len(groups) > 1:
        with worker_pool(min(num_processes, len(groups))) as pool:
            specs = [members[0] for members in groups.values()]
            found = pool.map(_bound_in_worker, specs, [traces] * len(specs))
            for members, bound_s in zip(groups.values(), found, strict=True):
                yield from ((run, bound_s) for run in members)
        return
    for members in groups.values():
        bound_s = average_bound(members[0].jobs, applications, members[0].settings.cluster())
        yield from ((run, bound_s) for run in members)


def _bound_in_worker(spec: RunSpec, traces: Path) -> float:
    return average_bound(spec.jobs, applications_of_worker(traces), spec.settings.cluster())
