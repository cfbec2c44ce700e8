"""Many simulations: what each is made of, and running them one after the other or over several cores."""

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
from pollux_slurm.simulator.engine.clock import simulate
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.workload import WorkloadJob
from pollux_slurm.simulator.results.summary import RunOutcome, outcome_of
from pollux_slurm.simulator.site.measured_jobs import read_truth


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
) -> list[RunOutcome]:
    """Return what comes of `specs`, in their order, however many processes share the work. See `run_each`."""
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
    """Yield the place in `specs` of each run and what came of it, as they end.

    `applications` were read from `traces`, which every process reads again. `on_done` is told how many runs
    are done; in one process also the part of the present one, by finished jobs. Raises `SimulationError` for
    a run that does not end, or a process that was killed.
    """
    if num_processes > 1 and len(specs) > 1:
        yield from _in_processes(specs, traces, num_processes, on_done)
        return
    for index, spec in enumerate(specs):
        num_jobs = len(spec.jobs)

        def tell(now_s: float, num_left: int, index: int = index, num_jobs: int = num_jobs) -> None:
            on_done(index + 1 - num_left / num_jobs)

        yield index, run_one(spec, applications, on_round=tell)
        on_done(index + 1)


def _in_processes(
    specs: Sequence[RunSpec], traces: Path, num_processes: int, on_done: Callable[[float], None]
) -> Iterator[tuple[int, RunOutcome]]:
    # Runs in one process do not wait for these.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    # Fresh processes: a fork would inherit the locks of numpy's and the progress bar's threads.
    context = multiprocessing.get_context("spawn")
    workers = min(num_processes, len(specs))
    with ProcessPoolExecutor(max_workers=workers, mp_context=context, initializer=_begin_elsewhere) as pool:
        places = {pool.submit(_run_elsewhere, spec, traces): index for index, spec in enumerate(specs)}
        try:
            for num_done, future in enumerate(as_completed(places), start=1):
                outcome = future.result()
                on_done(num_done)
                yield places[future], outcome
        except BrokenProcessPool:
            raise SimulationError(
                "a process that ran a simulation was killed, perhaps for want of memory: try fewer --jobs"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin_elsewhere() -> None:
    """Let an interrupt end a worker at once, without a traceback of its own, and so the end of its parent.

    A parent that is killed tells its workers nothing, and each holds the pipe open that all wait at: they
    would wait there for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_elsewhere(spec: RunSpec, traces: Path) -> RunOutcome:
    return run_one(spec, _traces_of_this_process(traces))


@functools.lru_cache(maxsize=1)
def _traces_of_this_process(traces: Path) -> Mapping[str, Application]:
    return read_truth(traces)
