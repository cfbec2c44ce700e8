"""Why a job has its GPUs, as lines: a decision in its owner's terms, and below in the policy's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from pollux_slurm.model import JobState, ReallocationCause
from pollux_slurm.now.decision_text import ended, gpus_text, kind_text, present_bound, why_not_more
from pollux_slurm.now.present_state import present_state
from pollux_slurm.now.promises import outcome_text
from pollux_slurm.text import duration_text, moment_text, number_text, plural

if TYPE_CHECKING:
    from pollux_slurm.model import JobDecision
    from pollux_slurm.now.explained import Explained, Outlook
    from pollux_slurm.store.contract.interface import DecisionRecord, JobRecord

Lines = Iterator[str]


def lines(known: Explained, *, details: bool = False) -> list[str]:
    """Return the text for people: the decision in the owner's terms, and with `details` in the policy's."""
    found = [*_owners_lines(known)]
    if known.round is not None and not known.is_over:
        shadow = ", in shadow mode: not enacted" if known.round.shadow else ""
        found += _line("round", f"{_round(known.round)}{shadow}")
    found += [*_paused(known), *_warnings(known)]
    found += [line for text in known.refused for line in _line("refused", text)]
    if known.present is not None and not known.is_over:
        because = known.present.record.not_moved_reason
        if because is not None and because not in (known.excluded_reason, *known.refused):
            found += _line("not moved", because)
    found += _line("silent", known.silent or "")
    if known.decision is None:
        return found
    if not details:
        return [*found, "  (the policy's own terms: --details)"]
    return [*found, *_details(known, known.decision)]


# ------------------------------------------------------------------------------------------ the owner's terms


def _owners_lines(known: Explained) -> Lines:
    present, decision = known.present, known.decision
    record = None if present is None else present.record
    is_failed = record is not None and record.state is JobState.FAILED
    if known.failure is not None:
        yield known.failure
    yield from _over(known, record) if record is not None and known.is_over else _headlines(known)
    yield from _line("finish", (record and outcome_text(record)) or "")
    if is_failed and known.failure is None:
        yield from _line("why", "the last line of its log says what ended it")
    if not is_failed:  # what was predicted for a job that failed does not matter any more
        yield from _wings(known)
        if decision is not None and known.excluded_reason is None and not known.is_paused:
            yield from _reasons(known, decision)
    if record is not None:
        yield from _restarts(record)
    if known.is_over:
        yield from _line("report", f"pollux report job {known.job_id}")


def _over(known: Explained, record: JobRecord) -> Lines:
    """Yield how and when a job ended, and its last decision."""
    yield f"job {known.job_id} {ended(record)}"
    if known.decision is None or known.round is None:
        yield from _line("last", known.explanation)
        return
    shadow = ", in shadow mode" if known.round.shadow else ""
    last = (
        f"left as it was: {known.excluded_reason}"
        if known.excluded_reason is not None
        else gpus_text(known.decision.allocation, known.decision.gpu_type)
    )
    yield from _line("last", f"round {_round(known.round)}{shadow}: {last}")


def _headlines(known: Explained) -> Lines:
    """Yield the present state first, where the last round's decision does not describe it."""
    job, headline = f"job {known.job_id}", _headline(known)
    state = None if known.present is None else present_state(known.present)
    move = None if known.present is None else known.present.record.open_reallocation
    if state is None:
        yield f"{job} {headline}" if known.decision is not None else headline
    elif move is None or known.decision is None:
        yield f"{job} {state}"
        yield from _line("last round", headline.removeprefix(f"{job} "))
    elif known.decision.allocation in (move.source, move.target) or known.excluded_reason is not None:
        yield f"{job} {state}"
    else:
        other = gpus_text(known.decision.allocation, known.decision.gpu_type)
        yield f"{job} {state}; the last round decided on {other}"


def _headline(known: Explained) -> str:
    """Return the decision, without the job's number; where there is none, why."""
    decision, outlook = known.decision, known.outlook
    if decision is None:
        return known.explanation
    if known.excluded_reason is not None:
        return f"is left as it is: {known.excluded_reason}"
    if known.is_paused:
        return "is paused"
    has = gpus_text(decision.allocation, decision.gpu_type)
    before = None if outlook is None else outlook.before
    if before == decision.allocation:
        return f"keeps {has}" if before else "gets no GPUs yet"
    if not before:
        return f"gets {has}"
    if not decision.allocation:
        return f"gives back its {gpus_text(before, None)} for now"
    return f"goes from {gpus_text(before, None)} to {has}"


def _wings(known: Explained) -> Lines:
    """Yield a line for each wing of a job that moves in place."""
    job = None if known.present is None else known.present.job
    name = "wings"
    for wing in (one for one in (() if job is None else job.wings) if not one.state.is_over):
        has = "no GPUs yet"
        if wing.allocation:
            has = f"{plural(wing.allocation.num_gpus, 'GPU')} on {', '.join(wing.allocation.nodes)}"
        because = "" if wing.reason in ("", "None") else f": {wing.reason}"
        state = "" if wing.state is JobState.RUNNING else f" ({wing.state.value}{because})"
        yield from _line(name, f"job {wing.job_id}: {has}{state}")
        name = ""


def _reasons(known: Explained, decision: JobDecision) -> Lines:
    outlook = known.outlook
    if outlook is not None and outlook.way is not None:
        from pollux_slurm.policy import way_text

        yield from _line("move", way_text(outlook.way, outlook.move_delay_s))
    yield from _predicted(decision, outlook)
    yield from _left(outlook)
    yield from _measured(known)
    has = 0 if known.present is None else known.present.record.allocation.num_gpus
    bound = present_bound(has or decision.allocation.num_gpus, known.max_gpus, decision.bound_by)
    why = why_not_more(bound, decision.pinned_because, was_moving=known.was_moving)
    yield from _line("not more", f"at that time: {why}" if known.is_over else why)
    yield from _line("share", (outlook and outlook.share_note) or "")
    yield from _next_size(decision, outlook)
    yield from _runner_up(decision, outlook)
    # A job that is about to end was seen to go on after its last epoch.
    if decision.declaration_doubt is not None and not known.is_over:
        yield from _line("epochs", f"the declared number is not used: {decision.declaration_doubt}")
    elif decision.declared_gain is not None:
        factor = f"{decision.declared_gain:.2f}"
        yield from _line("epochs", f"the declared number changes its weight by a factor of {factor}")


def _predicted(decision: JobDecision, outlook: Outlook | None) -> Lines:
    if outlook is not None and outlook.throughput is not None and outlook.efficiency is not None:
        rate, share = outlook.throughput, outlook.efficiency
        batch = "" if decision.batch is None else number_text(decision.batch.global_batch_size)
        useful = f", equivalent to {number_text(rate * share)} at its initial batch size"
        yield from _line(
            "predicted",
            f"{number_text(rate)} examples per second with batches of {batch}"
            f"{useful if share <= 0.995 else ''}",
        )
        times = [(outlook.over_one_gpu, "one GPU")]
        if outlook.size_before != 1 or outlook.over_one_gpu is None:
            had = plural(outlook.size_before or 0, "GPU")
            times.append((outlook.over_before, f"the {had} that it had before"))
        known = [f"{factor:.2g} times {what}" for factor, what in times if factor is not None]
        yield from _line("", f"that is {' and '.join(known)}" if known else "")
        yield from _line("", outlook.kind_note or "")
    elif outlook is not None and outlook.model_doubt is not None:
        yield from _line("predicted", f"nothing: its model is not used: {outlook.model_doubt}")
    elif decision.allocation:
        unknown = "no longer known: the round is kept in part"
        yield from _line(
            "predicted", unknown if outlook is None else "nothing yet: no step of it has been measured"
        )


def _left(outlook: Outlook | None) -> Lines:
    """Yield what is left of a job's training, as a range where the lengths of its kind differ."""
    if outlook is None or outlook.left_low_s is None:
        return
    times = dict.fromkeys((duration_text(outlook.left_low_s), duration_text(outlook.left_high_s)))
    yield from _line("left", f"{' to '.join(times)} of training on one GPU, by completed jobs of its kind")


def _measured(known: Explained) -> Lines:
    sample = None if known.present is None else known.present.measured
    if sample is None or sample.throughput is None or sample.batch is None:
        return
    batch = number_text(sample.batch.global_batch_size)
    rate = f"{number_text(sample.throughput)} examples per second with batches of {batch}"
    yield from _line("measured", f"{rate} ({_moment(sample.at)})")


def _next_size(decision: JobDecision, outlook: Outlook | None) -> Lines:
    """Yield what one more GPU would bring a job that no number of GPUs is predicted to make faster."""
    if decision.bound_by != "nothing" or outlook is None or outlook.num_gpus_more is None:
        return
    gpus, speedup = plural(outlook.num_gpus_more, "GPU"), outlook.speedup_more
    if speedup is None:
        yield from _line("", f"{gpus}: its batch cannot be split among so many")
        return
    factor = f"{speedup:.2g}"
    times = "as fast as" if factor == "1" else f"{factor} times as fast as"
    yield from _line("", f"{gpus}: predicted {times} {plural(decision.allocation.num_gpus, 'GPU')}")


def _runner_up(decision: JobDecision, outlook: Outlook | None) -> Lines:
    other = decision.runner_up
    if other is None:
        return
    if not other.num_gpus:
        yield from _line("else", "it would have to wait")
        return
    over_one = None if outlook is None else outlook.over_one_gpu
    if decision.allocation.num_gpus == 1:
        over_one = 1.0
    words = kind_text(other.num_gpus, other.num_nodes, decision.runner_up_gpu_type)
    if over_one is not None and decision.speedup and decision.runner_up_speedup is not None:
        factor = over_one * decision.runner_up_speedup / decision.speedup
        words += f", predicted {factor:.2g} times one GPU"
    yield from _line("next best", words)


def _restarts(record: JobRecord) -> Lines:
    if record.num_restarts:
        cost_s = record.mean_restart_delay_s
        cost = "" if cost_s is None else f", each of which cost it {duration_text(cost_s)} of training"
        yield from _line("restarts", f"{number_text(record.num_restarts)}{cost}")
    if record.mean_standstill_s is not None:
        standstill = duration_text(record.mean_standstill_s)
        yield from _line("in place", f"its last moves stood still for {standstill} on average")


def _paused(known: Explained) -> Lines:
    record = None if known.present is None else known.present.record
    if record is None or record.paused_at is None:
        return
    last = record.last_reallocation
    rest = "other jobs gain more from its GPUs now; a later round gives it GPUs again"
    if last is not None and last.cause is not ReallocationCause.DECISION:
        rest = f"{last.reason}; it waits until: pollux resume {known.job_id}"
    yield from _line("paused", f"since {_moment(record.paused_at)}: its checkpoint is written; {rest}")


def _warnings(known: Explained) -> Lines:
    for one in () if known.job is None else known.job.record.warnings:
        since = f"since run {one.run_number + 1}, {_moment(one.first_seen_at)}"
        yield from _line("warning", f"{one.warning.sentence} ({since}); cure: {one.warning.cure}")


# ----------------------------------------------------------------------------------------- the policy's terms


def _details(known: Explained, decision: JobDecision) -> Lines:
    yield from _line("policy", known.explanation)
    solved = known.decided
    if known.excluded_reason is not None or solved is None:
        return
    if (batch := decision.batch) is not None:
        micro_batches = plural(batch.accumulation_steps + 1, "micro-batch", "micro-batches")
        split = f"{micro_batches} of {number_text(batch.atomic_batch_size)} per GPU"
        yield from _line("batch", f"{number_text(batch.global_batch_size)} examples a step: {split}")
    prices = ", ".join(f"{kind or 'GPU'} {price:.4g}" for kind, price in solved.gpu_prices)
    cost = "" if decision.cost is None else f"; its GPUs cost other jobs {decision.cost:.4g}"
    if prices:
        yield from _line("prices", f"{prices} for one more GPU{cost} (in the objective's sum)")
    gap = "no bound"
    if solved.gap is not None and solved.upper_bound is not None:
        gap = f"at most {solved.upper_bound:.4g} ({solved.gap:.2%} away)"
    timeout = "; the time limit cut the search short" if solved.timed_out else ""
    yield from _line(
        "objective",
        f"{solved.objective}, solved by {solved.solver}: fitness {solved.fitness:.4g}, {gap}{timeout}",
    )


def _line(name: str, text: str) -> Lines:
    """Yield the line of a name; none without a text."""
    if text:
        yield f"  {name:<10} {text}"


def _round(solved: DecisionRecord) -> str:
    return f"{solved.round_id}, {_moment(solved.at)}"


def _moment(at: datetime | None) -> str:
    return f"{moment_text(at)} UTC"
