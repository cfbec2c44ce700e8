"""Run one or many simulations, one after the other or in parallel processes."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator.engine.simulation import simulate
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.workload import WorkloadJob
from pollux_slurm.simulator.policies import ExternalPolicy
from pollux_slurm.simulator.results.summary import RunOutcome, make_outcome
from pollux_slurm.simulator.site.measured_jobs import load_applications

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

# Called with the number of runs done, and how far they are as a text.
OnDone: TypeAlias = Callable[[float, str], None]
# How far a run is: its simulated seconds, and its jobs that have not ended.
_ENTRY = struct.Struct("dq")
_SHOWN_EVERY_S = 0.5


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
    with contextlib.closing(policy) if isinstance(policy, ExternalPolicy) else contextlib.nullcontext():
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


def run_each(
    specs: Sequence[RunSpec],
    traces: Path,
    applications: Mapping[str, Application],
    *,
    num_processes: int = 1,
    on_done: OnDone = lambda num_done, text: None,
) -> Iterator[tuple[int, RunOutcome]]:
    """Run `specs` and yield (index, outcome) of each as it ends.

    `applications` were read from `traces`, which every process reads again. `on_done` is called with the
    number of runs done, parts of the present ones by ended jobs included, and a text for people. Raises
    `SimulationError` for a run that does not end, or a process that was killed.
    """
    if num_processes > 1 and len(specs) > 1:
        yield from _in_processes(specs, traces, num_processes, on_done)
        return
    progress = _Progress(specs, on_done)
    for index, spec in enumerate(specs):

        def report(now_s: float, num_left: int, index: int = index) -> None:
            progress.show(index, now_s, num_left)

        yield index, run_one(spec, applications, on_round=report)


class _Progress:
    """How far some runs are: the ended jobs of each."""

    def __init__(self, specs: Sequence[RunSpec], on_done: OnDone) -> None:
        self._specs, self._on_done = specs, on_done
        self._num_ended = [0] * len(specs)
        self._num_jobs = sum(len(spec.jobs) for spec in specs)

    def show(self, index: int, now_s: float, num_left: int) -> None:
        """Tell that a run is at `now_s`, with `num_left` jobs that have not ended."""
        spec = self._specs[index]
        self._num_ended[index] = len(spec.jobs) - num_left
        parts = (ended / len(one.jobs) for ended, one in zip(self._num_ended, self._specs, strict=True))
        self._on_done(
            sum(parts),
            f"{sum(self._num_ended):,} of {self._num_jobs:,} jobs ended; {now_s / 3600:,.1f} h simulated of "
            f"{spec.workload}, {spec.settings.label}",
        )


def _in_processes(
    specs: Sequence[RunSpec], traces: Path, num_processes: int, on_done: OnDone
) -> Iterator[tuple[int, RunOutcome]]:
    # Imported here so that runs in one process do not wait for them.
    from concurrent.futures import FIRST_COMPLETED, wait
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing.shared_memory import SharedMemory

    workers = min(num_processes, len(specs))
    progress = _Progress(specs, on_done)
    # Where each run writes how far it is.
    board = SharedMemory(create=True, size=len(specs) * _ENTRY.size)
    assert board.buf is not None
    try:
        for index, spec in enumerate(specs):
            _ENTRY.pack_into(board.buf, index * _ENTRY.size, 0.0, len(spec.jobs))
        with worker_pool(workers) as pool:
            places = {
                pool.submit(_run_in_worker, spec, traces, board.name, index): index
                for index, spec in enumerate(specs)
            }
            running = set(places)
            try:
                while running:
                    ended, running = wait(running, timeout=_SHOWN_EVERY_S, return_when=FIRST_COMPLETED)
                    for future in sorted(ended, key=places.__getitem__):
                        yield places[future], future.result()
                    for index in [places[future] for future in (*running, *ended)]:
                        progress.show(index, *_ENTRY.unpack_from(board.buf, index * _ENTRY.size))
            except BrokenProcessPool:
                raise SimulationError(
                    "a process that ran a simulation was killed, perhaps for lack of memory: try fewer --jobs"
                ) from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    finally:
        board.close()
        board.unlink()


def worker_pool(num_processes: int) -> ProcessPoolExecutor:
    """Return a pool of processes that end with this one."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Spawned, because a fork would inherit the locks of numpy's and the progress bar's threads.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(max_workers=num_processes, mp_context=context, initializer=_start_worker)


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


def _run_in_worker(spec: RunSpec, traces: Path, board_name: str, index: int) -> RunOutcome:
    from multiprocessing.shared_memory import SharedMemory

    board = SharedMemory(board_name)
    assert board.buf is not None
    try:
        return run_one(
            spec,
            applications_of_worker(traces),
            on_round=functools.partial(_ENTRY.pack_into, board.buf, index * _ENTRY.size),
        )
    finally:
        board.close()


@functools.lru_cache(maxsize=1)
def applications_of_worker(traces: Path) -> Mapping[str, Application]:
    """Return the applications, which a process reads once."""
    return load_applications(traces)
