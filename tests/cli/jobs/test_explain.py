"""`pollux explain`: from a real store, and from a problem in a file."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import sqlite3
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pollux_slurm.goodput import best_batch
from pollux_slurm.model import (
    Allocation,
    BatchLimits,
    Configuration,
    GpuLimit,
    JobState,
    ReallocationStep,
    ReallocationWay,
    SlurmAnswer,
)
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.policy import decide
from pollux_slurm.policy.participation.share_memory import ShareMemory
from pollux_slurm.policy.problem.json_format import problem_to_json
from pollux_slurm.store import open_store
from pollux_slurm.store.contract.interface import Refusal
from tests.cli.inside import pollux
from tests.policy.builders import job, linear_model, nodes, problem
from tests.store.builders import at, members_of, move_in_place, observation, plan, registration

PROBLEM = problem(nodes(2), job("7", {"n0": 2}), job("8", max_gpus=4), job("9", min_gpus=3, max_gpus=2))


@pytest.fixture
def url(store_url: str) -> str:
    """A store with a round about jobs 7, 8 and 9, and a job 10 that no round has decided about."""
    store = open_store(store_url)
    store.jobs.register([registration(number) for number in (7, 8, 9, 10)], at=at(0))
    store.rounds.record(PROBLEM, decide(PROBLEM), shadow=True, at=at(60))
    store.close()
    return store_url


def test_that_the_last_round_is_explained(url: str) -> None:
    shown = pollux("explain", "7", "--store", url).stdout.splitlines()
    assert shown[0] == "job 7 goes from 2 GPUs on 1 node (n0:2) to 4 GPUs on 1 node (n0:4)"
    by_name = {line[2:12].strip(): line[13:] for line in shown[1:] if line[2:12].strip()}
    assert list(by_name) == ["move", "predicted", "not more", "next best", "round", "(the polic"]
    (over,) = (line.strip() for line in shown if line.strip().startswith("that is"))
    number = "[0-9.]+"
    assert re.fullmatch(
        f"that is {number} times one GPU and {number} times the 2 GPUs that it had before", over
    )
    assert by_name["predicted"] == "4,000 examples per second with batches of 5,040"
    assert re.fullmatch(r"\d GPUs on \d nodes?, predicted [0-9.]+ times one GPU", by_name["next best"])
    assert by_name["round"] == "1, 2026-03-01 12:01:00 UTC, in shadow mode: not enacted"
    for word in ("speedup", "goodput", "fitness", "price", "bound by", "restart factor"):
        assert word not in "\n".join(shown)


def test_that_what_is_left_by_the_lengths_of_a_kind_is_a_range_where_they_differ(tmp_path: Path) -> None:
    # One GPU makes a thousand useful examples a second.
    lengths = {"progress": 1e6, "expected_low": 4.6e6, "expected_progress": 4.6e6}
    file = tmp_path / "problem.json"

    def left(**fields: float) -> str | None:
        one = job("7", {"n0": 2}, **{**lengths, **fields})
        file.write_text(problem_to_json(problem(nodes(1), one)))
        shown = pollux("explain", "7", "--problem", str(file)).stdout.splitlines()
        return next((line[13:] for line in shown if line.startswith("  left ")), None)

    of_its_kind = "of training on one GPU, by completed jobs of its kind"
    assert left(expected_high=4.6e6) == f"1 h {of_its_kind}"
    assert left(expected_high=1.9e7) == f"1 h to 5 h {of_its_kind}"
    assert left(expected_high=1.9e7, max_gpus=1) == f"1 h to 5 h {of_its_kind}"
    # Its own declaration counts.
    assert left(expected_high=1.9e7, epochs_done=1.0, epochs_declared=3.0) is None
    assert left() is None
    facts = json.loads(pollux("explain", "7", "--problem", str(file), "--json").stdout)
    assert (facts["left_low_s"], facts["left_high_s"]) == (None, None)


def test_that_a_round_of_another_release_is_explained_without_its_problem(url: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        database.execute("UPDATE rounds SET problem = '{}'")
    found = pollux("explain", "7", "--store", url)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("job 7 gets 4 GPUs on 1 node (n0:4)")
    assert "no longer known: the round is kept in part" in found.stdout
    assert "next best" in found.stdout


def test_that_details_add_the_policys_terms(url: str) -> None:
    plain = pollux("explain", "7", "--store", url).stdout.splitlines()
    shown = pollux("explain", "7", "--details", "--store", url).stdout.splitlines()
    assert shown[: len(plain) - 1] == plain[:-1]
    (first,) = (line for line in shown if line.startswith("  policy "))
    assert first.startswith("  policy     job 7: n0:4; speedup ")
    for words in ("restart factor 1.00", "bound by ", "next best ", "at a price of "):
        assert words in first
    assert any("5,040 examples a step: 1 micro-batch of 1,260 per GPU" in line for line in shown)
    assert any("generalized-mean, solved by search: fitness" in line for line in shown)


def test_that_an_allocation_is_compared_with_one_gpu_and_with_the_former_one(url: str) -> None:
    """The speedup over the fair share does not help an owner: 0.8 may be twice the former goodput."""
    model = next(one for one in PROBLEM.jobs if one.job_id == "7").model
    assert model is not None
    rates = {}
    for gpus in (1, 2, 4):
        found = best_batch(model, Configuration(num_nodes=1, num_gpus=gpus))
        assert found is not None
        rates[gpus] = found.goodput
    facts = json.loads(pollux("explain", "7", "--json", "--store", url).stdout)
    assert (facts["before"], facts["size_before"]) == ({"n0": 2}, 2)
    assert facts["speedup_over_one_gpu"] == pytest.approx(rates[4] / rates[1])
    assert facts["speedup_over_before"] == pytest.approx(rates[4] / rates[2])
    assert facts["predicted"]["throughput"] * facts["predicted"]["efficiency"] == pytest.approx(rates[4])

    store = open_store(url)
    source, target = Allocation.of({"n0": 2}), Allocation.of({"n0": 4})
    move = store.journal.plan(
        "7", source=source, target=target, moves_running=True, from_restart_count=0, round_id=1, at=at(61)
    )
    store.journal.advance(move.id, ReallocationStep.CONFIRMED, expected=move.step, at=at(62))
    held = problem(nodes(2), job("7", {"n0": 4}, pinned=True, pinned_because="it is new there"))
    store.rounds.record(held, decide(held), shadow=False, at=at(70))
    store.close()
    facts = json.loads(pollux("explain", "7", "--json", "--store", url).stdout)
    assert (facts["before"], facts["size_before"]) == ({"n0": 4}, 2)
    assert facts["speedup_over_before"] == pytest.approx(rates[4] / rates[2])
    shown = pollux("explain", "7", "--store", url).stdout
    assert shown.startswith("job 7 keeps 4 GPUs on 1 node (n0:4)\n")
    assert "  not more   it is new there\n" in shown


def test_that_json_has_the_same_facts(url: str) -> None:
    found = json.loads(pollux("explain", "7", "--json", "--store", url).stdout)
    decided = decide(PROBLEM)
    one = decided.jobs[0]
    assert (found["slurm_job_id"], found["round"], found["allocation"]) == ("7", 1, {"n0": 4})
    assert (found["goodput"], found["speedup"], found["bound_by"]) == (one.goodput, one.speedup, one.bound_by)
    assert one.runner_up is not None
    assert found["runner_up"] == {
        "num_gpus": one.runner_up.num_gpus,
        "num_nodes": one.runner_up.num_nodes,
        "gpu_type": None,
        "speedup": one.runner_up_speedup,
        "extra_cost_to_others": one.runner_up_cost,
    }
    assert found["gpu_prices"] == dict(decided.gpu_prices)
    assert found["cost_to_others"] == pytest.approx(4 * found["gpu_prices"][""])


def test_that_a_job_that_was_left_out_has_the_reason(url: str) -> None:
    shown = pollux("explain", "9", "--store", url).stdout
    assert shown.startswith("job 9 is left as it is: min_gpus 3 is above max_gpus 2\n")


def test_that_a_job_that_takes_part_in_no_round_has_the_reason(url: str) -> None:
    store = open_store(url)
    store.jobs.record_not_moved({"10": "Slurm does not start it now, whatever is free (PartitionDown)"})
    store.close()
    shown = pollux("explain", "10", "--store", url).stdout
    assert shown.startswith("job 10 waits, and rounds leave it to Slurm: Slurm does not start it now")
    facts = json.loads(pollux("explain", "10", "--json", "--store", url).stdout)
    assert facts["excluded_reason"].endswith("(PartitionDown)")


def test_that_slurms_own_reason_for_a_refusal_is_told(url: str) -> None:
    store, now, two = open_store(url), datetime.now(timezone.utc), Allocation.of({"n0": 2})
    planned = store.journal.plan(
        "7", source=Allocation(), target=two, moves_running=False, from_restart_count=0, round_id=None, at=now
    )
    refusal = Refusal(allocation=two, answer=SlurmAnswer.NEVER, at=now, reason="BadConstraints")
    store.journal.record_refusal(planned.id, refusal)
    store.close()
    shown = pollux("explain", "7", "--store", url).stdout
    assert "  refused    Slurm refused n0:2 at " in shown
    assert "(BadConstraints); it is tried again from " in shown
    assert json.loads(pollux("explain", "7", "--json", "--store", url).stdout)["refused"]


def test_that_a_job_bound_by_share_names_the_users_other_jobs(tmp_path: Path) -> None:
    jobs = [job("a", user="ann"), *(job(f"b{i}", user="bob") for i in range(6))]
    one = problem(nodes(1), *jobs, between="users")
    file = tmp_path / "problem.json"
    file.write_text(problem_to_json(one))
    shown = pollux("explain", "b5", "--problem", str(file)).stdout
    assert shown.startswith("job b5 gets no GPUs yet\n")
    assert (
        "  not more   other jobs of the same user (or account) use that one's share of the cluster" in shown
    )


def test_that_a_share_that_is_not_equal_has_its_reason(tmp_path: Path) -> None:
    memory = ShareMemory(7 * 86400.0)
    memory.add("ann", 90 * 3600.0, since_s=0.0, until_s=0.0)
    memory.add("bob", 30 * 3600.0, since_s=0.0, until_s=0.0)
    jobs = [job("a", user="ann"), *(job(f"b{i}", user="bob") for i in range(6))]
    file = tmp_path / "problem.json"
    file.write_text(problem_to_json(memory.with_shares(problem(nodes(1), *jobs, between="users"), 0.0)))
    lines = pollux("explain", "a", "--problem", str(file)).stdout.splitlines()
    assert (
        "  share      ann's share is 0.25 of an equal one: ann recently used 90 of the 120 GPU hours of "
        "those who have jobs"
    ) in lines
    facts = json.loads(pollux("explain", "b0", "--json", "--problem", str(file)).stdout)
    assert facts["share"] == 1.75


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["11"], 1, "job 11 is not known as an adaptive job; see: pollux status --all"),
        (["7", "--round", "5"], 1, "there is no round 5"),
        (["10", "--round", "1"], 1, "round 1 decided nothing about job 10"),
        (["7", "--round", "1", "--problem", "x"], 2, "exclude each other"),
        (["7", "--problem", "absent.json"], 2, "cannot read absent.json"),
    ],
)
def test_that_an_unknown_job_or_round_is_one_clear_line(
    url: str, arguments: list[str], code: int, words: str
) -> None:
    done = pollux("explain", *arguments, "--store", url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert words in done.stderr


def test_that_a_job_of_a_saved_round_is_explained(url: str, tmp_path: Path) -> None:
    file = tmp_path / "round.json"
    assert pollux("replay", "--round", "1", "--save", str(file), "--store", url).returncode == 0
    assert file.read_text().strip() == problem_to_json(PROBLEM)
    found = json.loads(pollux("explain", "8", "--problem", str(file), "--json").stdout)
    assert (found["allocation"], found["bound_by"], found["round"]) == ({"n1": 4}, "max_gpus", None)
    unknown = pollux("explain", "77", "--problem", str(file))
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert "has no job '77'; it has 7, 8, 9" in unknown.stderr


def test_that_a_job_at_its_limit_is_bound_by_it(tmp_path: Path) -> None:
    limit = GpuLimit(kind="account", name="vision", max_gpus=2)
    bound = dataclasses.replace(problem(nodes(2), job("7", account="vision")), limits=(limit,))
    file = tmp_path / "limited.json"
    file.write_text(problem_to_json(bound))
    shown = pollux("explain", "7", "--problem", str(file)).stdout
    assert "not more   the GPU limit of its account, user or QOS is reached; an admin can raise that" in shown
    detailed = pollux("explain", "7", "--details", "--problem", str(file)).stdout
    assert "bound by limit (its account's or user's limit of GPUs)" in detailed


def test_that_a_model_that_is_not_used_is_shown_with_the_reason(tmp_path: Path) -> None:
    doubted = problem(nodes(2), job("7", {"n0": 2}, model=None, model_doubt="it promises too much"))
    file = tmp_path / "doubted.json"
    file.write_text(problem_to_json(doubted))
    shown = pollux("explain", "7", "--problem", str(file)).stdout
    assert "nothing: its model is not used: it promises too much" in shown


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (4, "3 GPUs: predicted as fast as 2 GPUs"),
        (2, "3 GPUs: its batch cannot be split among so many"),
    ],
)
def test_that_a_gpu_that_would_not_help_is_shown_as_that_and_not_as_the_owners_limit(
    tmp_path: Path, batch: int, message: str
) -> None:
    model = dataclasses.replace(linear_model(), limits=BatchLimits(initial_batch_size=batch))
    file = tmp_path / "two-of-three.json"
    file.write_text(problem_to_json(problem(nodes(2), job("7", {"n0": 2}, max_gpus=3, model=model))))
    shown = pollux("explain", "7", "--problem", str(file)).stdout
    assert (
        f"not more   no larger number of GPUs is predicted to make it faster\n             {message}\n"
        in shown
    )
    assert "its owner allows no more" not in shown


def test_that_every_bound_has_a_sentence_for_the_owner() -> None:
    from pollux_slurm.now.decision_text import _MORE
    from pollux_slurm.policy.explain.wording import BOUND_TEXTS

    assert set(_MORE) == set(BOUND_TEXTS)


def test_that_a_job_that_never_reported_is_marked(url: str) -> None:
    store = open_store(url)
    store.jobs.observe([observation(10, gpus={"n0": 2}, started_at=at(5))], at=at(6))
    store.close()
    shown = pollux("explain", "10", "--store", url)
    assert shown.returncode == 0
    assert shown.stdout.startswith("no round has decided about job 10 yet: no daemon runs: ")
    assert "\n  silent     it started " in shown.stdout
    assert "pollux_slurm.torch.init_process_group" in shown.stdout
    listed = pollux("status", "--store", url).stdout
    assert "running !" in next(line for line in listed.splitlines() if line.startswith("10 "))
    assert "! job 10: it started " in listed
    assert " d ago and has not reported: either it never calls" in listed
    facts = {
        one["slurm_job_id"]: one for one in json.loads(pollux("status", "--json", "--store", url).stdout)
    }
    assert (facts["7"]["silent"], facts["10"]["silent"] is None) == (None, False)

    store = open_store(url)
    store.jobs.observe([observation(10, JobState.COMPLETED, ended_at=at(500))], at=at(501))
    store.close()
    told = "silent     it ended without any report: either before a daemon registered it, or it never calls "
    assert told in pollux("explain", "10", "--store", url).stdout


def test_that_a_job_without_a_decision_shows_when_the_next_round_is(url: str) -> None:
    store = open_store(url)
    store.lease.acquire("ctl:1:a", ttl_s=600, at=datetime.now(timezone.utc), interval_s=60, watch_s=10)
    store.close()
    assert pollux("explain", "10", "--store", url).stdout == (
        "no round has decided about job 10 yet: the daemon reads Slurm every 10 s, and runs a round at once "
        "when something changed\n"
    )


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (JobState.COMPLETED, "it completed"),
        (JobState.FAILED, "it failed"),
        (JobState.CANCELLED, "it was cancelled"),
        (JobState.TIMEOUT, "it ran into its time limit"),
    ],
)
def test_that_a_job_that_has_ended_shows_how_and_its_last_decision(
    url: str, state: JobState, words: str
) -> None:
    store = open_store(url)
    store.jobs.observe([observation(7, gpus={"n0": 2}, started_at=at(5))], at=at(6))
    store.jobs.observe([observation(7, state, started_at=at(5), ended_at=at(500))], at=at(501))
    store.jobs.observe([observation(10, state, started_at=at(5), ended_at=at(500))], at=at(501))
    store.close()
    doubt = "UPDATE decisions SET declaration_doubt = 'it trains on after the 30 epochs that it declared'"
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        database.execute(doubt)
    ended = f"job 7 is over: {words} at 2026-03-01 12:08:20 UTC"
    shown = pollux("explain", "7", "--store", url).stdout.splitlines()
    assert shown[:2] == [
        ended,
        "  last       round 1, 2026-03-01 12:01:00 UTC, in shadow mode: 4 GPUs on 1 node (n0:4)",
    ]
    reason = "  not more   at that time: "
    if state is JobState.FAILED:
        reason = "  why        the last line of its log says what ended it"
    assert any(line.startswith(reason) for line in shown)
    assert not any("trains on" in line for line in shown), "its end contradicts that"
    assert not any("keeps" in line or "goes from" in line or line.startswith("  round") for line in shown)
    last = pollux("status", "7", "--store", url).stdout.splitlines()[-1]
    assert last.startswith(f"{ended}; the last round about it: 4 GPUs on 1 node (n0:4)")
    if state is JobState.COMPLETED:  # drawing its plots takes a second
        assert f"{ended}; the last round" in pollux("report", "job", "7", "--html", "--store", url).stdout
    facts = json.loads(pollux("explain", "7", "--json", "--store", url).stdout)
    assert (facts["state"], facts["finished_at"]) == (state.value, "2026-03-01T12:08:20+00:00")
    assert pollux("explain", "10", "--store", url).stdout.startswith(
        f"job 10 is over: {words} at 2026-03-01 12:08:20 UTC\n  last       no round decided about job 10\n"
    )
    assert pollux("explain", "7", "--round", "1", "--store", url).stdout.startswith("job 7 goes from ")


def test_that_a_move_in_place_is_shown_as_one(url: str) -> None:
    store = open_store(url)
    move_in_place(store, 7, start=60, standstill_s=0.25)
    source, target = Allocation.of({"n0": 3}), Allocation.of({"n0": 3, "n1": 1})
    planned = plan(store, 7, seconds=80, source=source, target=target, way=ReallocationWay.IN_PLACE)
    store.journal.request_regroup(planned.id, members_of(planned), expected=planned.step, at=at(81))
    store.close()
    facts = json.loads(pollux("explain", "7", "--json", "--store", url).stdout)
    assert (facts["moving_way"], facts["restarts"]) == ("in_place", 0)
    assert (facts["mean_standstill_s"], facts["mean_warm_up_s"]) == (0.25, pytest.approx(7.75))
    shown = pollux("explain", "7", "--store", url).stdout
    way = "n0:3 → n0:3+n1:1 in place (trains on while its new processes start)"
    other = "the last round decided on 4 GPUs on 1 node (n0:4)"
    assert shown.splitlines()[0] == f"job 7 is being moved: {way}; {other}"
    assert "last round " not in "".join(shown.splitlines(keepends=True)[1:])
    assert "  in place   its last moves stood still for 0.25 s on average\n" in shown
    (one,) = json.loads(pollux("status", "7", "--json", "--store", url).stdout)
    assert (one["reallocation"]["way"], one["mean_standstill_s"]) == ("in_place", 0.25)


def test_that_a_job_is_shown_as_moving_as_long_as_a_daemon_moves_it(
    url: str,
) -> None:
    store = open_store(url)
    source, target = Allocation.of({"n0": 2}), Allocation.of({"n0": 4})
    move = store.journal.plan(
        "7", source=source, target=target, moves_running=True, from_restart_count=0, round_id=1, at=at(61)
    )
    steps = (Step.PLANNED, Step.CHECKPOINT_REQUESTED, Step.CHECKPOINTED, Step.REQUEUED)
    for before, after in itertools.pairwise(steps):
        store.journal.advance(move.id, after, expected=before, at=at(62))
    store.jobs.observe([observation(7, JobState.PENDING)], at=at(63))
    way = "n0:2 → n0:4 (is stopped and back in the queue)"

    def shown_state() -> str:
        table = pollux("status", "--store", url).stdout.splitlines()
        (line,) = (line for line in table if line.startswith("7 "))
        assert way in line
        return line.split()[3]

    assert shown_state() == "pending"  # nobody moves it on
    store.lease.acquire("ctl:1:a", ttl_s=600, at=datetime.now(timezone.utc), interval_s=60, watch_s=10)
    store.close()
    assert shown_state() == "moving"
    assert f"job 7 is being moved: {way}" in pollux("status", "7", "--store", url).stdout.splitlines()[-1]
    assert pollux("explain", "7", "--store", url).stdout.startswith(f"job 7 is being moved: {way}\n")
    assert json.loads(pollux("explain", "7", "--json", "--store", url).stdout)["moving_cause"] == "decision"
    (one,) = json.loads(pollux("status", "7", "--json", "--store", url).stdout)
    assert (one["reallocation"]["step"], one["reallocation"]["cause"]) == ("requeued", "decision")

    store = open_store(url)
    released = (Step.REQUEUED, Step.RESHAPED, Step.RELEASED)
    for before, after in itertools.pairwise(released):
        store.journal.advance(move.id, after, expected=before, at=at(64))
    store.jobs.observe([observation(7, gpus={"n0": 4}, started_at=at(66), restart_count=1)], at=at(66))
    held = problem(nodes(2), job("7", {"n0": 4}, pinned=True, pinned_because="it is being moved"))
    store.rounds.record(held, decide(held), shadow=False, at=at(67))
    started = "n0:2 → n0:4 (is started, and has reported no step yet)"
    assert pollux("explain", "7", "--store", url).stdout.startswith(f"job 7 is being moved: {started}\n")
    assert "  not more   it is being moved\n" in pollux("explain", "7", "--store", url).stdout
    for before, after in itertools.pairwise((Step.RELEASED, Step.RUNNING, Step.CONFIRMED)):
        store.journal.advance(move.id, after, expected=before, at=at(70))
    store.close()
    since = "it was being moved when this round decided; the next one decides anew"
    assert f"  not more   {since}\n" in pollux("explain", "7", "--store", url).stdout
    assert f"not more: {since}" in pollux("status", "7", "--store", url).stdout


def test_that_a_job_on_one_gpu_is_compared_with_the_next_best_allocation_once(
    tmp_path: Path,
) -> None:
    file = tmp_path / "one.json"
    two = problem(nodes(1), job("7", {"n0": 1}, age_s=0.0, restart_delay_s=1e6), job("8", {"n0": 1}))
    file.write_text(problem_to_json(two))
    shown = pollux("explain", "7", "--problem", str(file)).stdout
    assert "  not more   a move would cost it more than more GPUs bring" in shown
    assert re.search(r"  next best  \d GPUs on 1 node, predicted [\d.]+ times one GPU\n", shown)
    grown = pollux("explain", "8", "--problem", str(file)).stdout
    assert grown.startswith("job 8 goes from 1 GPU on 1 node (n0:1) to ")
    assert "times one GPU\n" in grown
    assert "that it had before" not in grown


def test_that_a_paused_job_is_shown_as_paused(url: str) -> None:
    store = open_store(url)
    move = store.journal.plan(
        "7",
        source=Allocation.of({"n0": 2}),
        target=Allocation(),
        moves_running=True,
        from_restart_count=0,
        round_id=1,
        at=at(61),
    )
    store.journal.advance(move.id, ReallocationStep.CONFIRMED, expected=move.step, at=at(62))
    store.close()
    shown = pollux("explain", "7", "--store", url).stdout
    assert shown.startswith("job 7 is paused\n")
    assert "paused     since 2026-03-01 12:01:02 UTC" in shown
    assert "not more" not in shown
    table = pollux("status", "7", "--store", url).stdout.splitlines()
    assert table[-1].startswith("job 7 is paused until a round gives it GPUs again (more: ")
    (row,) = (line for line in table if line.startswith("7 "))
    assert row.split()[3] == "paused"
    assert row.rstrip().endswith("paused until a round gives it GPUs again")
    (shown,) = json.loads(pollux("status", "7", "--json", "--store", url).stdout)
    assert (shown["state"], shown["paused_at"]) == ("pending", "2026-03-01T12:01:02+00:00")
    assert json.loads(pollux("explain", "7", "--json", "--store", url).stdout)["paused_cause"] == "decision"
    assert "paused" not in pollux("explain", "8", "--store", url).stdout
