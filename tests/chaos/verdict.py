"""The end of a run: what must be true of every job, the journal and the cluster, and the counts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pollux_slurm.agent.checkpoints.lineage import read_claim
from pollux_slurm.errors import SupersededRunError
from pollux_slurm.model import JobState, SlurmJob
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.store.contract.interface import Reallocation
from tests.books.totals import totals_compared
from tests.chaos.faults import integrity
from tests.chaos.run import Outcome
from tests.chaos.site import EXIT_RECORDS, ChaosJob, Site

LEAST_ACCURACY = 0.95
_REFUSED = "has taken over from run"
_LEFTOVER = "a newer run of this job has reported to the store"


def judge(site: Site, outcome: Outcome, sacct: CommandRunner | None = None) -> None:
    """Add everything that is wrong to `outcome`, and count the moves by their outcomes.

    With `sacct`, the site has a slurmdbd: the store's GPU seconds must be those of it.
    """
    snapshot = site.user.slurm.snapshot()
    by_id = {job.job_id: job for job in snapshot.jobs}
    for job in site.jobs:
        wrong = of_job(site, job, by_id.get(job.job_id))
        outcome.wrong.extend(f"job {job.job_id} ({job.name}): {word}" for word in wrong)
    outcome.wrong.extend(f"job {job.job_id} is left held" for job in snapshot.jobs if job.held)
    outcome.wrong.extend(f"wing {wing} is left" for wing in site.wings())
    outcome.wrong.extend(sorted(site.watch.violations))
    outcome.wrong.extend(
        f"reallocation {move.id} of job {move.slurm_job_id} is still {move.step.value}"
        for move in site.user.store.journal.open_reallocations()
    )
    if site.server is None and (result := integrity(site)) != "ok":
        outcome.wrong.append(f"the store's file is damaged: {result}")
    if sacct is not None:
        wrong, note = totals_compared(site.user.store, {job.job_id: job.name for job in site.jobs}, sacct)
        outcome.wrong.extend(wrong)
        outcome.notes.append(note)
    outcome.moves.update(by_outcome(site.user.store.journal.reallocations()))
    outcome.notes.append(
        f"{len(site.jobs)} jobs, {sum(job.cancelled for job in site.jobs)} of them cancelled"
    )
    outcome.notes.append(f"{site.starts} starts of the daemon, {site.watch.looks} looks from outside")
    outcome.notes.append(f"{outcome.mended} restarts of a slurmctld that counted GPUs that nobody held")
    outcome.notes.append(f"{outcome.crashes} crashes of slurmctld by itself")
    outcome.refused_checkpoints = superseded_runs(site, _REFUSED)
    outcome.notes.append(f"{outcome.refused_checkpoints} leftovers were refused a late checkpoint")
    outcome.notes.append(
        f"{superseded_runs(site, _LEFTOVER)} leftovers learnt from the store that they are one"
    )


def of_job(site: Site, job: ChaosJob, seen: SlurmJob | None) -> list[str]:
    """Return what is wrong with one job."""
    record = site.user.record(job.job_id)
    wrong = lineage_errors(site.folder / "checkpoints" / job.name)
    state = seen.state if seen is not None else record.state if record is not None else None
    if job.cancelled:
        # It may have ended before the command, or before any round; Slurm forgets it after five minutes.
        ends = (JobState.CANCELLED, JobState.COMPLETED, None)
        return wrong if state in ends else [*wrong, f"was cancelled and is {state}"]
    if job.may_fail and state in (JobState.FAILED, None):
        return wrong
    if state is not JobState.COMPLETED:
        word = state.value if state is not None else "gone"
        reason = f" ({seen.reason}, exit code {seen.exit_code})" if seen is not None else ""
        wrong.append(f"is {word}{reason} instead of completed")
    if record is None or record.state is not JobState.COMPLETED:
        wrong.append(f"is {record.state.value if record else 'unknown'} to the daemon")
    try:
        result = json.loads((site.folder / f"{job.name}.json").read_text(encoding="utf-8"))
    except OSError:
        return [*wrong, "left no result"]
    if result["accuracy"] < LEAST_ACCURACY:
        wrong.append(f"reached an accuracy of {result['accuracy']:.4f} only")
    counts = [(epoch["min"], epoch["max"]) for epoch in result["audit"]]
    if result["epochs"] != site.epochs or counts != [(1, 1)] * site.epochs:
        wrong.append(f"did not use every sample once an epoch: {result['epochs']} epochs, {counts}")
    return wrong


def lineage_errors(directory: Path) -> list[str]:
    """Return which runs resumed from a checkpoint outside their lineage.

    A run resumes from a checkpoint of the run before it, or from the one that run had resumed from. A
    checkpoint that an earlier run wrote later is in no lineage.
    """
    runs = sorted(
        int(match[1])
        for path in directory.glob("runs/*.json")
        if (match := re.fullmatch(r"(\d+)\.json", path.name))
    )
    if runs != list(range(len(runs))):
        return [f"its runs are numbered {runs}"]
    wrong = []
    before = None
    for number in runs:
        start = read_claim(directory, number).resumed_from
        is_next = start is not None and start.run_number == number - 1
        if not is_next and start != before:
            wrong.append(f"run {number} went on from {start and start.file_name}, which is not in its line")
        before = start
    return wrong


def superseded_runs(site: Site, words: str) -> int:
    """Return how many runs of jobs ended because another had superseded them, by `words` in their logs."""
    ends = {file: file.read_text(errors="replace") for file in (site.folder / EXIT_RECORDS).iterdir()}
    return len(
        {
            tuple(file.name.split("-")[:2])
            for file, end in ends.items()
            if end.startswith(SupersededRunError.__name__) and words in end
        }
    )


def by_outcome(moves: Iterable[Reallocation]) -> Counter[str]:
    """Count moves by their way, last step and reason, without the numbers in the reason."""
    counts: Counter[str] = Counter()
    for move in moves:
        reason = f": {re.sub(r'[0-9]+', 'N', move.reason)[:90]}" if move.reason else ""
        counts[f"{move.way.value}: {move.step.value}{reason}"] += 1
    return counts


def lines(outcome: Outcome) -> list[str]:
    """Return the counts as text."""
    text = [f"{sum(outcome.faults.values())} faults"]
    text += [f"  {count:4d}  {kind}" for kind, count in sorted(outcome.faults.items())]
    text += ["the daemon was killed"]
    text += [f"  {count:4d}  {point}" for point, count in sorted(outcome.points.items())]
    if outcome.not_reached:
        text += [f"  never reached: {', '.join(sorted(outcome.not_reached))}"]
    text += [f"{sum(outcome.moves.values())} reallocations"]
    text += [f"  {count:4d}  {move}" for move, count in sorted(outcome.moves.items())]
    text += [*outcome.notes]
    text += ["nothing is wrong"] if not outcome.wrong else [f"WRONG: {word}" for word in outcome.wrong]
    return text
