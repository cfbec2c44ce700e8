"""Many simulations: what each is made of, and running them one after the other or over several cores."""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.simulator.applications import Application, read_applications
from pollux_slurm.simulator.clock import simulate
from pollux_slurm.simulator.settings import RunSettings
from pollux_slurm.simulator.summary import RunOutcome, outcome_of
from pollux_slurm.simulator.workload import WorkloadJob


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One simulation to run: `workload` is the name of `jobs`."""

    workload: str
    jobs: tuple[WorkloadJob, ...]
    settings: RunSettings


def run_one(
    spec: RunSpec,
    applications: Mapping[str, Application],
    *,
    on_round: Callable[[float, int], None] = lambda now_s, num_left: None,
    clock: Callable[[], float] = time.perf_counter,
) -> RunOutcome:
    """Run one simulation in this process. Raises `SimulationError` for one that does not end."""
    settings = spec.settings
    began_s = clock()
    result = simulate(
        spec.jobs,
        applications,
        settings.make_policy(),
        settings.cluster(),
        rules=settings.make_rules(),
        on_round=on_round,
        clock=clock,
    )
    return outcome_of(
        result,
        policy=settings.policy,
        objective=settings.objective if settings.policy == "pollux" else None,
        workload=spec.workload,
        wall_s=clock() - began_s,
    )


def run_all(
    specs: Sequence[RunSpec],
    traces: Path,
    applications: Mapping[str, Application],
    *,
    num_processes: int = 1,
    on_done: Callable[[float], None] = lambda num_done: None,
) -> Iterator[RunOutcome]:
    """Yield what comes of `specs`, in their order, however many processes share the work.

    `applications` were read from `traces`, which every process reads again. `on_done` is told how many runs
    are done; in one process also the part of the present one, by finished jobs.
    """
    if num_processes > 1 and len(specs) > 1:
        yield from _in_processes(specs, traces, num_processes, on_done)
        return
    for index, spec in enumerate(specs):
        num_jobs = len(spec.jobs)

        def tell(now_s: float, num_left: int, index: int = index, num_jobs: int = num_jobs) -> None:
            on_done(index + 1 - num_left / num_jobs)

        yield run_one(spec, applications, on_round=tell)
        on_done(index + 1)


def _in_processes(
    specs: Sequence[RunSpec], traces: Path, num_processes: int, on_done: Callable[[float], None]
) -> Iterator[RunOutcome]:
    # Fresh processes: a fork would inherit the locks of numpy's and the progress bar's threads.
    context = multiprocessing.get_context("spawn")
    workers = min(num_processes, len(specs))
    with ProcessPoolExecutor(max_workers=workers, mp_context=context) as pool:
        try:
            futures = [pool.submit(_run_elsewhere, spec, traces) for spec in specs]
            for future in futures:
                future.add_done_callback(lambda _: on_done(sum(one.done() for one in futures)))
            for future in futures:
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_elsewhere(spec: RunSpec, traces: Path) -> RunOutcome:
    return run_one(spec, _traces_of_this_process(traces))


@functools.lru_cache(maxsize=1)
def _traces_of_this_process(traces: Path) -> Mapping[str, Application]:
    return read_applications(traces)
