"""The bounds of an experiment's runs: one for each workload, cluster, interval and delay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pollux_slurm.simulator.bound.dual_bound import average_bound
from pollux_slurm.simulator.experiments.runs import RunSpec, applications_of_worker, worker_pool
from pollux_slurm.simulator.inputs.applications import Application


def bounds_of(
    specs: Sequence[RunSpec],
    traces: Path,
    applications: Mapping[str, Application],
    num_processes: int,
) -> Iterator[tuple[int, float]]:
    """Yield each run's index with what no policy's average is below (seconds), as it is computed."""
    groups: dict[object, list[int]] = {}
    for index, spec in enumerate(specs):
        groups.setdefault((spec.jobs, spec.settings.cluster()), []).append(index)
    firsts = [specs[members[0]] for members in groups.values()]
    if num_processes > 1 and len(groups) > 1:
        with worker_pool(min(num_processes, len(groups))) as pool:
            found = pool.map(_bound_in_worker, firsts, [traces] * len(firsts))
            for members, bound_s in zip(groups.values(), found, strict=True):
                yield from ((index, bound_s) for index in members)
        return
    for members, spec in zip(groups.values(), firsts, strict=True):
        bound_s = average_bound(spec.jobs, applications, spec.settings.cluster())
        yield from ((index, bound_s) for index in members)


def _bound_in_worker(spec: RunSpec, traces: Path) -> float:
    return average_bound(spec.jobs, applications_of_worker(traces), spec.settings.cluster())
