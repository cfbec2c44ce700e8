"""What jobs gain by false reports: a published workload in which every tenth job makes them.

These jobs declare fewer epochs, report false models, or hold back their first steps. The policy checks
reports as the daemon does, or not at all. POLLUX_TRACES names the artifact's folder of traces, the arguments
are workloads. For several, mean changes and their standard errors are printed, too: single workloads differ
by chance.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.decide import declared_epochs, model_checks
from pollux_slurm.goodput import best_batch
from pollux_slurm.model import (
    Configuration,
    GoodputModel,
    GradientStatistics,
    Objective,
    ProblemJob,
    ThroughputParameters,
)
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.engine.simulation import simulate
from pollux_slurm.simulator.inputs.applications import Application, read_applications
from pollux_slurm.simulator.inputs.workload import read_workload
from pollux_slurm.simulator.policies import PolluxPolicy
from pollux_slurm.store.contract.interface import MIN_RECENT_RUN_S, RECENT_RUNS, Declaration, RecentRun
from pollux_slurm.store.jobs.past_moves import MOVES_IN_MEAN

NEVER = datetime(2026, 1, 1, tzinfo=timezone.utc)
OBJECTIVES = ("generalized-mean", "osdi21", "price-rank", "attained-work")
MOST_GPUS = 64
SITE = DaemonConfig()

FalseReport = Callable[[ProblemJob, Configuration | None], ProblemJob]


def truth(reported: ProblemJob, configuration: Configuration | None) -> ProblemJob:
    return reported


def fewer_epochs(factor: float) -> FalseReport:
    """Declare fewer epochs: the remaining ones divided by `factor`."""

    def false_report(reported: ProblemJob, configuration: Configuration | None) -> ProblemJob:
        done, declared = reported.epochs_done, reported.epochs_declared
        if not done or declared is None or reported.progress is None:
            return reported
        return dataclasses.replace(reported, epochs_declared=done + (declared - done) / factor)

    return false_report


def asks_for(least_gpus: int) -> FalseReport:
    """Request at least this many GPUs, which an owner may do."""
    return lambda reported, configuration: dataclasses.replace(
        reported, min_gpus=min(least_gpus, reported.max_gpus or least_gpus)
    )


def bad_predictions(reported: ProblemJob, configuration: Configuration | None) -> ProblemJob:
    """Report the largest prediction error, so that the job hardly loses any GPUs."""
    return dataclasses.replace(reported, prediction_error=1.0)


def linear(reported: ProblemJob, configuration: Configuration | None) -> ProblemJob:
    """Report the true goodput on the present GPUs, and goodput in proportion to the GPUs elsewhere."""
    return _scaled(reported, configuration, least_gpus=1)


def steep(reported: ProblemJob, configuration: Configuration | None) -> ProblemJob:
    """Report the same, and that the job trains on 16 GPUs and more only."""
    return _scaled(reported, configuration, least_gpus=16)


def times_as_fast(factor: float) -> FalseReport:
    """Report `factor` times the true speed everywhere, so that the job's past work looks small."""

    def false_report(reported: ProblemJob, configuration: Configuration | None) -> ProblemJob:
        model = reported.model
        if model is None or model.throughput is None:
            return reported
        theta = model.throughput
        times = {name: getattr(theta, name) / factor for name in _TIMES}
        return dataclasses.replace(
            reported, model=dataclasses.replace(model, throughput=dataclasses.replace(theta, **times))
        )

    return false_report


_TIMES = ("alpha_g", "beta_g", "alpha_n", "beta_n", "alpha_l", "beta_l")


def _scaled(reported: ProblemJob, configuration: Configuration | None, *, least_gpus: int) -> ProblemJob:
    model = reported.model
    if model is None or configuration is None:
        return reported
    true = best_batch(model, configuration)
    if true is None:
        return reported
    limits = model.limits
    if least_gpus > 1:
        most = max(limits.initial_batch_size // least_gpus, 1)
        limits = dataclasses.replace(limits, min_atomic=1, max_atomic=most, accumulation=False)
    else:
        limits = dataclasses.replace(limits, min_atomic=1)
    theta = ThroughputParameters(
        alpha_g=0.0,
        beta_g=configuration.num_gpus / true.goodput,
        alpha_n=0.0,
        beta_n=0.0,
        alpha_l=0.0,
        beta_l=0.0,
        gamma=1.0,
    )
    false_model = GoodputModel(
        limits=limits,
        statistics=GradientStatistics(sqr=1e-12, var=1.0),
        throughput=theta,
        max_gpus_seen=MOST_GPUS,
        max_nodes_seen=MOST_GPUS,
    )
    return dataclasses.replace(reported, model=false_model)


@dataclass(slots=True)
class _Run:
    """A run of a job: its allocation, and time and useful progress of its first and last sample."""

    allocation: GpusByNode
    since_s: float
    before: float
    until_s: float
    made: float

    @property
    def recent_run(self) -> RecentRun:
        configuration = Configuration(
            num_nodes=len(self.allocation), num_gpus=sum(gpus for _, gpus in self.allocation)
        )
        return RecentRun(self.made - self.before, ((configuration, self.until_s - self.since_s),))


class _LateFirstSteps:
    """A job that reports the first step after a restart on `from_gpus` or more as late as it may.

    As in the daemon, it is pinned until it reports, and the mean of its measured delays counts, up to the
    longest that a site lets count.
    """

    def __init__(self, from_gpus: int) -> None:
        self._from_gpus, self._delays_s = from_gpus, deque[float](maxlen=MOVES_IN_MEAN)
        self._num_restarts, self._reports_at_s = 0, 0.0

    def changed(self, true: ProblemJob) -> ProblemJob:
        """Return the job as the daemon sees it, in any round."""
        if true.num_restarts > self._num_restarts and true.current:
            late = true.current.num_gpus >= self._from_gpus
            delay_s = SITE.first_report_timeout_s if late else true.restart_delay_s
            self._delays_s.append(delay_s)
            self._num_restarts, self._reports_at_s = true.num_restarts, true.age_s + delay_s
        if not self._delays_s:
            return true
        return dataclasses.replace(
            true,
            restart_delay_s=min(statistics.mean(self._delays_s), SITE.max_restart_delay_s),
            pinned=true.pinned or (bool(true.current) and true.age_s < self._reports_at_s),
        )


class FalseReportsPolicy(PolluxPolicy):
    """The daemon's policy with `false_reporters`, whose truth `false_report` changes.

    With `kinds`, jobs declare no epochs, and learn from others of their application. False reporters say that
    they are of `false_kind`, if it is given, and hold back first steps on `late_from_gpus` or more. `doubted`
    are the jobs whose reports failed a check.
    """

    def __init__(
        self,
        objective: str,
        false_reporters: Collection[str],
        false_report: FalseReport,
        *,
        checked: bool,
        kinds: bool = False,
        false_kind: str | None = None,
        late_from_gpus: int | None = None,
    ) -> None:
        super().__init__(Objective(name=objective), declared=not kinds, kinds=kinds)
        self._false_kind = false_kind
        self._late = (
            {}
            if late_from_gpus is None
            else {name: _LateFirstSteps(late_from_gpus) for name in false_reporters}
        )
        self._false_reporters, self._false_report, self._checked = false_reporters, false_report, checked
        self._least: dict[str, float] = {}
        self._runs: defaultdict[str, list[_Run]] = defaultdict(list)
        self._false_epochs: set[str] = set()
        self.doubted: set[str] = set()

    def _kind(self, job: SimulatedJob) -> str:
        is_false = self._false_kind is not None and job.job.name in self._false_reporters
        return self._false_kind if is_false and self._false_kind else super()._kind(job)

    def _problem_job(
        self, now_s: float, job: SimulatedJob, names: Sequence[str], *, several: bool
    ) -> ProblemJob:
        reported = super()._problem_job(now_s, job, names, several=several)
        configuration = None
        if job.allocation:
            configuration = Configuration(num_nodes=len(job.allocation), num_gpus=job.num_gpus)
        if reported.job_id in self._false_reporters:
            reported = self._false_report(reported, configuration)
        if reported.job_id in self._late:
            reported = self._late[reported.job_id].changed(reported)
        if not self._checked:
            return reported
        return self._with_checked_model(now_s, job, self._with_checked_epochs(reported))

    def _with_checked_epochs(self, reported: ProblemJob) -> ProblemJob:
        done, declared = reported.epochs_done, reported.epochs_declared
        if not done or declared is None or reported.progress is None:
            return reported
        if done >= 1:
            least = min(reported.progress * declared / done, self._least.get(reported.job_id, float("inf")))
            self._least[reported.job_id] = least
            declaration = Declaration(
                total_epochs=1, at=NEVER, epoch=0, progress=0.0, least_total_progress=least
            )
            if (
                declared_epochs.declaration_doubt(
                    [declaration], declared=1, epoch=0, progress=reported.progress
                )
                is not None
            ):
                self._false_epochs.add(reported.job_id)
        if reported.job_id not in self._false_epochs:
            return reported
        self.doubted.add(reported.job_id)
        return dataclasses.replace(reported, epochs_declared=None)

    def _with_checked_model(self, now_s: float, job: SimulatedJob, reported: ProblemJob) -> ProblemJob:
        runs = self._runs[reported.job_id]
        if job.allocation and not job.interruptions:
            if not runs or runs[-1].allocation != job.allocation or runs[-1].made > job.useful_progress:
                runs.append(_Run(job.allocation, now_s, job.useful_progress, now_s, job.useful_progress))
            runs[-1].until_s, runs[-1].made = now_s, job.useful_progress
        elif runs and runs[-1].allocation:
            runs.append(
                _Run((), now_s, job.useful_progress, now_s, job.useful_progress)
            )  # the next one begins anew
        recent_runs = [
            run.recent_run for run in reversed(runs) if run.until_s - run.since_s >= MIN_RECENT_RUN_S
        ]
        if model_checks.model_doubt((reported.model, reported.models), recent_runs[:RECENT_RUNS]) is None:
            return reported
        self.doubted.add(reported.job_id)
        return dataclasses.replace(reported, model=None)


@dataclass(frozen=True, slots=True)
class _Case:
    """One kind of false report, whether it is checked, and the objectives under which it may pay.

    `kinds`, `false_kind` and `late_from_gpus` are those of the policy.
    """

    name: str
    false_report: FalseReport
    checked: bool = True
    objectives: tuple[str, ...] = OBJECTIVES
    kinds: bool = False
    false_kind: str | None = None
    late_from_gpus: int | None = None


CASES = (
    _Case("the truth", truth),
    _Case("a quarter of its epochs is left", fewer_epochs(4.0), objectives=("price-rank",)),
    _Case("a thousandth is left", fewer_epochs(1000.0), checked=False, objectives=("price-rank",)),
    _Case("a thousandth is left", fewer_epochs(1000.0), objectives=("price-rank",)),
    _Case("it scales in proportion", linear),
    _Case("it needs 16 GPUs", steep),
    _Case("it is 3.9 times as fast", times_as_fast(3.9), objectives=OBJECTIVES[2:]),
    _Case("it is 9 times as fast", times_as_fast(9.0), objectives=OBJECTIVES[2:]),
    _Case("it is 90 times as fast", times_as_fast(90.0), objectives=OBJECTIVES[2:]),
    _Case("it is 1000 times as fast", times_as_fast(1e3), checked=False, objectives=OBJECTIVES[2:]),
    _Case("it is 1000 times as fast", times_as_fast(1e3), objectives=OBJECTIVES[2:]),
    _Case("its minimum is 16 GPUs", asks_for(16)),
    _Case("first steps come late, from 8 GPUs on", truth, late_from_gpus=8),
    _Case("its predictions are bad", bad_predictions),
    _Case("the truth, kinds are known", truth, kinds=True),
    _Case("its kind is that of the shortest jobs", truth, kinds=True, false_kind="ncf"),
    _Case("its kind is that of the longest jobs", truth, kinds=True, false_kind="imagenet"),
    _Case("its kind is nobody else's", truth, kinds=True, false_kind="a false one"),
)


@dataclass(frozen=True, slots=True)
class _Times:
    """Average completion times in seconds, of false reporters and of the others."""

    false_reporters_s: float
    others_s: float


def _run(workload: Path, applications: Mapping[str, Application], objective: str, case: _Case) -> _Times:
    """Simulate a case and print its line."""
    jobs = read_workload(workload, applications)
    false_reporters = {job.name for index, job in enumerate(jobs) if index % 10 == 3}
    policy = FalseReportsPolicy(
        objective,
        false_reporters,
        case.false_report,
        checked=case.checked,
        kinds=case.kinds,
        false_kind=case.false_kind,
        late_from_gpus=case.late_from_gpus,
    )
    result = simulate(jobs, applications, policy, Cluster())
    times = {job.job.name: (job.finished_s or 0.0) - job.job.submitted_s for job in result.jobs}
    mean = [
        statistics.mean(time for name, time in times.items() if (name in false_reporters) is is_false)
        for is_false in (True, False)
    ]
    found = len(policy.doubted & false_reporters)
    print(
        f"| {objective} | {case.name} | {case.checked} | {workload.stem} | {mean[0]:.0f} | {mean[1]:.0f} "
        f"| {found} of {len(false_reporters)} | {len(policy.doubted) - found} |",
        flush=True,
    )
    return _Times(*mean)


def _changes(times: Sequence[_Times], true: Sequence[_Times]) -> str:
    """Return how much later false reporters and others end than with the truth on the same workloads."""
    changes = [
        [
            100 * (getattr(one, whose) / getattr(other, whose) - 1)
            for one, other in zip(times, true, strict=True)
        ]
        for whose in ("false_reporters_s", "others_s")
    ]
    return "; ".join(
        f"{statistics.mean(found):+.1f} ± {statistics.stdev(found) / len(found) ** 0.5:.1f} %"
        for found in changes
    )


def main() -> None:
    """Print average completion times of false reporters and others, and how many of each were doubted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", type=Path, nargs="+", help="such as workloads/workload-1.csv")
    parser.add_argument("--objective", action="append", choices=OBJECTIVES)
    parser.add_argument("--kinds", action="store_true", help="only the cases about kinds")
    parser.add_argument("--case", help="only the truth and the cases with this in their names")
    arguments = parser.parse_args()
    applications = read_applications(Path(os.environ["POLLUX_TRACES"]))
    print(
        "| objective | false report | checked | workload | false reporters, s | others, s | of them doubted "
        "| others doubted |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for objective in arguments.objective or OBJECTIVES:
        true: dict[bool, list[_Times]] = {}
        for case in CASES:
            is_true = case.false_report is truth and case.false_kind is None and case.late_from_gpus is None
            is_asked = arguments.case is None or arguments.case in case.name or (is_true and not case.kinds)
            if objective not in case.objectives or (arguments.kinds and not case.kinds) or not is_asked:
                continue
            times = [_run(workload, applications, objective, case) for workload in arguments.workloads]
            if is_true:
                true[case.kinds] = times
            elif len(times) > 1:
                # Means over workloads with their standard errors.
                print(f"| {objective} | {case.name} | {case.checked} | {_changes(times, true[case.kinds])} |")


if __name__ == "__main__":
    main()
