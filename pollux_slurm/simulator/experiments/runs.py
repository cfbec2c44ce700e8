"""Run one or many simulations, one after the other or in parallel processes."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator.engine.simulation import simulate
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.workload import WorkloadJob
from pollux_slurm.simulator.results.summary import RunOutcome, make_outcome
from pollux_slurm.simulator.site.measured_jobs import load_applications


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One simulation to run; `workload` is the name of `jobs`."""

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
    """Run one simulation in this process. Raises `SimulationError` if it does not end."""
    settings = spec.settings
    began_s = clock()
    policy = settings.make_policy()
    result = simulate(
        spec.jobs,
        applications,
        policy,
        settings.cluster(),
        rules=settings.make_rules(),
        autoscaler=settings.make_autoscaler(policy),
        on_round=on_round,
        clock=clock,
    )
    return make_outcome(
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
) -> list[RunOutcome]:
    """Run `specs` and return their outcomes in order. See `run_each`."""
    found = dict(run_each(specs, traces, applications, num_processes=num_processes, on_done=on_done))
    return [found[index] for index in range(len(specs))]


def run_each(
    specs: Sequence[RunSpec],
    traces: Path,
    applications: Mapping[str, Application],
    *,
    num_processes: int = 1,
    on_done: Callable[[float], None] = lambda num_done: None,
) -> Iterator[tuple[int, RunOutcome]]:
    """Run `specs` and yield (index, outcome) of each as it ends.

    `applications` were read from `traces`, which every process reads again. `on_done` is called with the
    number of runs done; in one process it includes the part of the present run, by finished jobs. Raises
    `SimulationError` for a run that does not end, or a process that was killed.
    """
    if num_processes > 1 and len(specs) > 1:
        yield from _in_processes(specs, traces, num_processes, on_done)
        return
    for index, spec in enumerate(specs):
        num_jobs = len(spec.jobs)

        def report(now_s: float, num_left: int, index: int = index, num_jobs: int = num_jobs) -> None:
            on_done(index + 1 - num_left / num_jobs)

        yield index, run_one(spec, applications, on_round=report)
        on_done(index + 1)


def _in_processes(
    specs: Sequence[RunSpec], traces: Path, num_processes: int, on_done: Callable[[float], None]
) -> Iterator[tuple[int, RunOutcome]]:
    # Imported here so that runs in one process do not wait for them.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    # Spawned, because a fork would inherit the locks of numpy's and the progress bar's threads.
    context = multiprocessing.get_context("spawn")
    workers = min(num_processes, len(specs))
    with ProcessPoolExecutor(max_workers=workers, mp_context=context, initializer=_start_worker) as pool:
        places = {pool.submit(_run_in_worker, spec, traces): index for index, spec in enumerate(specs)}
        try:
            for num_done, future in enumerate(as_completed(places), start=1):
                outcome = future.result()
                on_done(num_done)
                yield places[future], outcome
        except BrokenProcessPool:
            raise SimulationError(
                "a process that ran a simulation was killed, perhaps for lack of memory: try fewer --jobs"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _start_worker() -> None:
    """End a worker at once, without a traceback, when it is interrupted or its parent ends.

    Workers do not notice that their parent was killed, because each keeps the pipe open on which all wait.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_in_worker(spec: RunSpec, traces: Path) -> RunOutcome:
    return run_one(spec, _applications_of_worker(traces))


@functools.lru_cache(maxsize=1)
def _applications_of_worker(traces: Path) -> Mapping[str, Application]:
    return load_applications(traces)
