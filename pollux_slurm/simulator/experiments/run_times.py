"""How long an experiment will take, about."""

from __future__ import annotations

from collections.abc import Sequence

from pollux_slurm.simulator.experiments.kept_runs import ExperimentRun
from pollux_slurm.text import duration_text

# Seconds of processor time for a job at load 1 on 16 nodes of 4 GPUs (one core of an AMD EPYC). Twice the
# load costs half as much again a job. The bound of a workload counts like a policy.
_JOB_S = {"genetic": 0.9, "bound": 0.25, "shockwave": 0.1, "sia": 0.05, "pollux": 0.025, "slaq": 0.015}
_GAVEL_JOB_S, _OTHER_JOB_S = 0.025, 0.005
_GROWTH = 0.6
# A shorter experiment is not announced.
_LEAST_TOLD_S = 60.0


def expected_s(runs: Sequence[ExperimentRun], num_processes: int) -> float:
    """Return about how many seconds `runs` take with `num_processes` processes."""
    bounded = {(run.workload, run.settings.cluster()): run for run in runs if run.has_bound}
    total_s = sum(_run_s(run, run.settings.policy) for run in runs)
    total_s += sum(_run_s(run, "bound") for run in bounded.values())
    return total_s / num_processes


def expected_text(runs: Sequence[ExperimentRun], num_processes: int) -> str:
    """Return a line for people, empty where the runs take less than a minute."""
    found_s = expected_s(runs, num_processes)
    if found_s < _LEAST_TOLD_S:
        return ""
    return (
        f"{len(runs)} simulations, about {duration_text(found_s)} with {num_processes} at a time, "
        "if no core does anything else"
    )


def _run_s(run: ExperimentRun, what: str) -> float:
    load = max(1.0, run.load or 1.0)
    usual_s = _GAVEL_JOB_S if what.startswith("gavel") else _OTHER_JOB_S
    return _JOB_S.get(what, usual_s) * len(run.jobs) * float(load**_GROWTH)
