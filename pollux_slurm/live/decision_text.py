"""A decision in the terms of the job's owner: GPUs, examples per second, what would have to change.

`pollux_slurm.policy.explain.wording` has the policy's terms, which `--details` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pollux_slurm.model import Allocation, JobState, ReallocationStep, ReallocationWay
from pollux_slurm.text import duration_text, moment_text, number_text, plural

if TYPE_CHECKING:
    from pollux_slurm.store.contract.interface import DecisionRecord, JobRecord, Reallocation

_MORE = {
    "capacity": "other jobs gain more from more GPUs for now; it gets more when some of those end",
    "max_gpus": "its owner allows no more: pollux change JOB --max-gpus N",
    "exploration": "it may at most double its largest number of GPUs so far; it can grow further once it has "
    "reported from this number",
    "penalty": "a move would cost it more than more GPUs bring; each round decides that anew",
    "placement": "the free GPUs are not where a larger allocation would fit",
    "cpus": "where GPUs are free there are too few CPUs: request fewer per GPU (--cpus-per-gpu)",
    "memory": "where GPUs are free there is too little memory: request less per GPU (--mem-per-gpu)",
    "partition": "the nodes that it may use have no more",
    "rigid": "its number of GPUs is fixed: --min-gpus and --max-gpus are equal, or it cannot be requeued",
    "young": "it has run for too short (--min-run, policy.min_age_s), or ends too soon, to be moved",
    "limit": "the GPU limit of its account, user or QOS is reached; an admin can raise that",
    "moves": "this round moves no more jobs; it may be moved in the next",
    "share": "other jobs of the same user (or account) use that one's share of the cluster; it gets more "
    "when one of them ends, or when other users need less",
    "waiting": "GPUs are reserved for a job that has waited for too long",
    "not_tried": "Slurm refused a larger allocation lately, or would not keep the job's place in it",
    "pinned": "it has to stay as it is for now",
    "nothing": "no larger number of GPUs is predicted to make it faster",
}


_MOVED_SINCE = "it was being moved when this round decided; the next one decides anew"
_ENDS = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMEOUT: "ran into its time limit",
}


def ended(state: JobState, finished_at: str | None) -> str:
    """Return how and when a job ended; `finished_at` is in the form of `--json`."""
    when = "" if finished_at is None else f" at {moment(finished_at)}"
    return f"is over: it {_ENDS.get(state, state.value)}{when}"


def move_text(move: Reallocation, state: JobState) -> str:
    """Return source, target, way and step of an open reallocation of a job that is in `state`."""
    step = move.step
    if step is ReallocationStep.RELEASED and state is JobState.RUNNING:
        step = ReallocationStep.RUNNING  # Slurm has started it, and the daemon has not seen that yet
    way = " in place" if move.way is ReallocationWay.IN_PLACE else ""
    return f"{move.source} → {move.target}{way} ({step.text})"


def summary(decided: DecisionRecord, record: JobRecord, now: str | None = None) -> str:
    """Return the last decision about a job in one line, without the policy's numbers.

    `now` is its present state, where that differs (`pollux_slurm.live.present_state`).
    """
    job, excluded = decided.job, decided.excluded_reason
    if record.state.is_over:
        finished_at = None if record.finished_at is None else record.finished_at.isoformat()
        last = _gpus_of(job.allocation.as_dict(), job.gpu_type)
        return f"job {job.job_id} {ended(record.state, finished_at)}; the last round about it: {last}"
    if record.open_reallocation is not None:
        return f"job {job.job_id} is being moved: {move_text(record.open_reallocation, record.state)}"
    if record.paused_at is not None:
        return f"job {job.job_id} is {paused(record)}"
    first = f"job {job.job_id}" if now is None else f"job {job.job_id} {now}; the last round"
    if excluded is not None:
        return f"{first} {'is left' if now is None else 'left it'} as it is: {excluded}"
    has = _gpus_of(job.allocation.as_dict(), job.gpu_type)
    size = record.allocation.num_gpus or job.allocation.num_gpus
    why = _why(
        "max_gpus" if has_maximum(size, record.terms.max_gpus, job.bound_by) else job.bound_by,
        job.pinned_because,
        moved_since=moved_since(decided, record),
    )
    return f"{first}: {has}; not more: {why}"


# Bounds of a job that say more than its owner's maximum does, where it has that.
_STRONGER = ("max_gpus", "nothing", "rigid")


def has_maximum(num_gpus: int, max_gpus: int | None, bound_by: str | None) -> bool:
    """Whether what keeps a job from more GPUs is that it has the maximum that its owner allows."""
    return max_gpus is not None and num_gpus >= max_gpus and bound_by not in _STRONGER


def short_reason(record: JobRecord) -> str:
    """Return why a job has no more GPUs by its last decision, in one short sentence."""
    if record.open_reallocation is not None:
        return f"it is being moved: {move_text(record.open_reallocation, record.state)}"
    if record.paused_at is not None:
        return f"it is {paused(record)}"
    bound = record.last_decision_bound_by or "nothing"
    if has_maximum(record.allocation.num_gpus, record.terms.max_gpus, bound):
        bound = "max_gpus"
    return record.not_moved_reason or _why(bound, None, moved_since=False)


def paused(record: JobRecord) -> str:
    """Return until when a paused job waits."""
    until = (
        f"pollux resume {record.slurm_job_id}" if record.is_pause_ordered else "a round gives it GPUs again"
    )
    return f"paused until {until}"


def moved_since(decided: DecisionRecord, record: JobRecord) -> bool:
    """Tell whether the job was being moved at the time of the decision, and that move has ended."""
    last = record.last_reallocation
    if record.open_reallocation is not None or last is None or last.is_pause or not last.step.is_end:
        return False
    begin, end = last.times[0][1], last.times[-1][1]
    return decided.job.pinned_because is not None and begin < decided.at <= end


def owners_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the lines for a job's owner, from the facts that `pollux explain --json` prints."""
    is_over = facts.get("ended") is not None
    found = _over(facts) if is_over else _headlines(facts)
    if (promise := facts.get("promise")) is not None:
        found += _line("finish", promise["text"])
    if is_over and facts.get("state") == JobState.FAILED.value:
        # What was predicted does not matter any more.
        rest = [*_restarts(facts), *_line("report", f"pollux report job {facts['job_id']}")]
        if (failure := facts.get("failure")) is not None:
            return [str(failure), *found, *rest]
        return [*found, *_line("why", "the last line of its log says what ended it"), *rest]
    found += _wings(facts)
    is_paused = facts.get("paused_at") is not None
    if facts.get("excluded_reason") is None and facts.get("allocation") is not None and not is_paused:
        found += _expected_move(facts)
        found += _predicted(facts)
        then = "at that time: " if is_over else ""
        size = facts.get("num_gpus_now") or facts["num_gpus"]
        at_most = has_maximum(size, facts.get("max_gpus"), facts["bound_by"])
        bound = "max_gpus" if at_most else facts["bound_by"]
        why = _why(bound, facts["pinned_because"], moved_since=bool(facts.get("moved_since")))
        found += _line("not more", then + why)
        if facts.get("share_note") is not None:
            found += _line("share", facts["share_note"])
        found += _next_size(facts)
        found += _runner_up(facts)
        found += _declared(facts)
    found += _restarts(facts)
    return [*found, *_line("report", f"pollux report job {facts['job_id']}")] if is_over else found


def _over(facts: Mapping[str, Any]) -> list[str]:
    """Return the first lines about a job that has ended: how and when, and its last decision."""
    found = [f"job {facts['job_id']} {facts['ended']}"]
    if facts.get("allocation") is None:
        return [*found, *_line("last", str(facts["explanation"]))]
    of_round = f"round {facts['round']}, {moment(facts['at'])}{', in shadow mode' if facts['shadow'] else ''}"
    last = (
        f"left as it was: {facts['excluded_reason']}"
        if facts.get("excluded_reason") is not None
        else _gpus_of(facts["allocation"], facts["gpu_type"])
    )
    return [*found, *_line("last", f"{of_round}: {last}")]


def _headlines(facts: Mapping[str, Any]) -> list[str]:
    """Return the present state first, where it differs from the last round's decision."""
    job, headline = f"job {facts['job_id']}", _headline(facts)
    if facts.get("now") is None:
        return [headline]
    return [f"{job} {facts['now']}", *_line("last round", headline.removeprefix(f"{job} "))]


def _wings(facts: Mapping[str, Any]) -> list[str]:
    """Return a line for each wing of a job that moves in place."""
    found = []
    for place, wing in enumerate(facts.get("wings", ())):
        has = (
            f"{plural(wing['num_gpus'], 'GPU')} on {', '.join(wing['nodes'])}"
            if wing["nodes"]
            else "no GPUs yet"
        )
        state = "" if wing["state"] == "running" else f" ({wing['state']}{_because(wing['reason'])})"
        found += _line("" if place else "wings", f"job {wing['job_id']}: {has}{state}")
    return found


def _because(reason: str) -> str:
    return "" if reason in ("", "None") else f": {reason}"


def _headline(facts: Mapping[str, Any]) -> str:
    job = f"job {facts['job_id']}"
    if facts.get("allocation") is None:
        return str(facts["explanation"])
    if facts.get("excluded_reason") is not None:
        return f"{job} is left as it is: {facts['excluded_reason']}"
    if facts.get("paused_at") is not None:
        return f"{job} is paused"
    now, before = facts["allocation"], facts["before"]
    has = _gpus_of(now, facts["gpu_type"])
    if before == now:
        return f"{job} keeps {has}" if now else f"{job} gets no GPUs yet"
    if not before:
        return f"{job} gets {has}"
    if not now:
        return f"{job} gives back its {_gpus_of(before, None)} for now"
    return f"{job} goes from {_gpus_of(before, None)} to {has}"


def _expected_move(facts: Mapping[str, Any]) -> list[str]:
    """Return how the decision expects the job to go to its new allocation."""
    if facts.get("way") is None:
        return []
    from pollux_slurm.policy import way_text

    return _line("move", way_text(ReallocationWay(facts["way"]), facts["move_delay_s"]))


def _predicted(facts: Mapping[str, Any]) -> list[str]:
    found = []
    predicted, measured = facts.get("predicted"), facts.get("measured")
    if predicted is not None:
        rate, share = predicted["throughput"], predicted["efficiency"]
        useful = (
            "" if share > 0.995 else f", equivalent to {number_text(rate * share)} at its initial batch size"
        )
        batch = f"with batches of {number_text(facts['global_batch_size'])}"
        found += _line("predicted", f"{number_text(rate)} examples per second {batch}{useful}")
        times = [(facts["speedup_over_one_gpu"], "one GPU")]
        if facts["size_before"] != 1 or facts["speedup_over_one_gpu"] is None:
            times.append(
                (
                    facts["speedup_over_before"],
                    f"the {plural(facts['size_before'] or 0, 'GPU')} that it had before",
                )
            )
        shown = [f"{factor:.2g} times {what}" for factor, what in times if factor is not None]
        found += _line("", "that is " + " and ".join(shown) if shown else "")
        if facts.get("kind_note") is not None:
            found += _line("", facts["kind_note"])
    elif facts.get("model_doubt") is not None:
        found += _line("predicted", f"nothing: its model is not used: {facts['model_doubt']}")
    elif facts["allocation"]:
        is_kept = facts.get("before") is not None
        unmeasured = "nothing yet: no step of it has been measured"
        found += _line("predicted", unmeasured if is_kept else "no longer known: the round is kept in part")
    if measured is not None:
        found += _line(
            "measured",
            f"{number_text(measured['throughput'])} examples per second with batches of "
            f"{number_text(measured['global_batch_size'])} ({moment(measured['at'])})",
        )
    return found


def _next_size(facts: Mapping[str, Any]) -> list[str]:
    """Return what one more GPU would bring a job that no number of GPUs is predicted to make faster."""
    one_more = facts.get("one_gpu_more")
    if facts["bound_by"] != "nothing" or one_more is None:
        return []
    gpus = plural(one_more["num_gpus"], "GPU")
    if one_more["speedup"] is None:
        return _line("", f"{gpus}: its batch cannot be split among so many")
    factor = f"{one_more['speedup']:.2g}"
    times = "as fast as" if factor == "1" else f"{factor} times as fast as"
    return _line("", f"{gpus}: predicted {times} {plural(facts['num_gpus'], 'GPU')}")


def _runner_up(facts: Mapping[str, Any]) -> list[str]:
    other = facts["runner_up"]
    if other is None:
        return []
    if not other["num_gpus"]:
        return _line("else", "it would have to wait")
    words = _gpus(other["num_gpus"], other["num_nodes"], other["gpu_type"])
    over_one, speedup = facts.get("speedup_over_one_gpu"), facts["speedup"]
    if facts["num_gpus"] == 1:
        over_one = 1.0
    if over_one is not None and speedup:
        words += f", predicted {over_one * other['speedup'] / speedup:.2g} times one GPU"
    return _line("next best", words)


def _declared(facts: Mapping[str, Any]) -> list[str]:
    # A job that is about to end was seen to go on after its last epoch.
    if facts["declaration_doubt"] is not None and facts.get("ended") is None:
        return _line("epochs", f"the declared number is not used: {facts['declaration_doubt']}")
    if facts["declared_gain"] is not None:
        return _line(
            "epochs", f"the declared number changes its weight by a factor of {facts['declared_gain']:.2f}"
        )
    return []


def moment(at: str) -> str:
    """Return a time, given in the form of `--json`, for people."""
    return f"{moment_text(datetime.fromisoformat(at))} UTC"


def _restarts(facts: Mapping[str, Any]) -> list[str]:
    number, cost_s = facts.get("num_restarts"), facts.get("mean_restart_delay_s")
    found = []
    if number:
        cost = "" if cost_s is None else f", each of which cost it {duration_text(cost_s)} of training"
        found += _line("restarts", f"{number}{cost}")
    if (standstill_s := facts.get("mean_standstill_s")) is not None:
        found += _line("in place", f"its last moves stood still for {duration_text(standstill_s)} on average")
    return found


def _why(bound_by: str, pinned_because: str | None, *, moved_since: bool) -> str:
    if bound_by == "max_gpus":
        return _MORE["max_gpus"]
    return _MOVED_SINCE if moved_since else pinned_because or _MORE.get(bound_by, bound_by)


def _line(name: str, text: str) -> list[str]:
    return [f"  {name:<10} {text}"] if text else []


def _gpus_of(gpus_by_node: Mapping[str, int], gpu_type: str | None) -> str:
    allocation = Allocation.of(gpus_by_node)
    gpus = _gpus(allocation.num_gpus, allocation.num_nodes, gpu_type)
    return f"{gpus} ({allocation})" if allocation else "no GPUs"


def _gpus(num_gpus: int, num_nodes: int, gpu_type: str | None) -> str:
    return f"{plural(num_gpus, f'{gpu_type} GPU' if gpu_type else 'GPU')} on {plural(num_nodes, 'node')}"
