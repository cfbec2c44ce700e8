"""`pollux explain`: from a real store, and from a problem in a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pollux_slurm.model import Allocation, GpuLimit, ReallocationStep
from pollux_slurm.policy import decide
from pollux_slurm.policy.problem_json import problem_to_json
from pollux_slurm.store import open_store
from tests.cli.inside import pollux
from tests.policy.builders import job, nodes, problem
from tests.store.builders import at, registration

PROBLEM = problem(nodes(2), job("7", {"n0": 2}), job("8", max_gpus=4), job("9", min_gpus=3, max_gpus=2))


@pytest.fixture
def url(store_url: str) -> str:
    """A store with a round about jobs 7, 8 and 9, and a job 10 that no round has decided about."""
    store = open_store(store_url)
    store.register_jobs([registration(number) for number in (7, 8, 9, 10)], at=at(0))
    store.record_round(PROBLEM, decide(PROBLEM), shadow=True, at=at(60))
    store.close()
    return store_url


def test_that_the_last_round_is_explained(url: str) -> None:
    shown = pollux("explain", "7", "--store", url).stdout
    first = shown.splitlines()[0]
    assert first.startswith("job 7: n0:4; speedup ")
    for words in ("restart factor 1.00", "bound by ", "next best ", "at a price of "):
        assert words in first
    for words in (
        "round      1 at 2026-03-01T12:01:00+00:00, in shadow mode",
        "5040 examples a step: 1260 per",
    ):
        assert words in shown
    assert "generalized-mean, solved by exact: fitness" in shown


def test_that_the_json_form_says_the_same(url: str) -> None:
    found = json.loads(pollux("explain", "7", "--json", "--store", url).stdout)
    decided = decide(PROBLEM)
    one = decided.jobs[0]
    assert (found["job_id"], found["round"], found["allocation"]) == ("7", 1, {"n0": 4})
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


def test_that_a_job_that_was_left_out_is_told_why(url: str) -> None:
    shown = pollux("explain", "9", "--store", url).stdout
    assert shown.startswith("job 9 is left as it is: min_gpus 3 is above max_gpus 2\n")


def test_that_status_of_one_job_ends_with_the_line(url: str) -> None:
    last = pollux("status", "7", "--store", url).stdout.splitlines()[-1]
    assert last.startswith("job 7: n0:4; ")
    assert last.endswith("(more: pollux explain 7)")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["11"], 1, "job 11 is not known as an adaptive job; see: pollux status --all"),
        (["10"], 1, "no round has decided about job 10 yet"),
        (["7", "--round", "5"], 1, "there is no round 5"),
        (["10", "--round", "1"], 1, "round 1 decided nothing about job 10"),
        (["7", "--round", "1", "--problem", "x"], 2, "exclude each other"),
        (["7", "--problem", "absent.json"], 2, "cannot read absent.json"),
    ],
)
def test_that_what_cannot_be_explained_is_one_clear_line(
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


def test_that_a_limit_is_said_to_bind(tmp_path: Path) -> None:
    limit = GpuLimit(kind="account", name="vision", max_gpus=2)
    bound = dataclasses.replace(problem(nodes(2), job("7", account="vision")), limits=(limit,))
    file = tmp_path / "limited.json"
    file.write_text(problem_to_json(bound))
    shown = pollux("explain", "7", "--problem", str(file)).stdout
    assert "bound by limit (its account's or user's limit of GPUs)" in shown


def test_that_a_paused_job_is_said_to_be_paused(url: str) -> None:
    store = open_store(url)
    move = store.plan_reallocation(
        "7",
        source=Allocation.of({"n0": 2}),
        target=Allocation(),
        moves_running=True,
        from_restart_count=0,
        round_id=1,
        at=at(61),
    )
    store.advance_reallocation(move.id, ReallocationStep.CONFIRMED, expected=move.step, at=at(62))
    store.close()
    assert "paused     since 2026-03-01T12:01:02" in pollux("explain", "7", "--store", url).stdout
    assert "paused" in pollux("status", "7", "--store", url).stdout
    (shown,) = json.loads(pollux("status", "7", "--json", "--store", url).stdout)
    assert (shown["state"], shown["paused_at"]) == ("pending", "2026-03-01T12:01:02+00:00")
    assert "paused" not in pollux("explain", "8", "--store", url).stdout
