"""The report of a daemon that ran in shadow mode."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.document import Document
from pollux_slurm.document.forms.exports import data_csv, document_json
from pollux_slurm.document.forms.html import document_html
from pollux_slurm.model import Allocation, Decision, JobDecision, Problem
from pollux_slurm.policy.comparison import evaluate
from pollux_slurm.policy.decide import fitness_of
from pollux_slurm.report.parts.shadow_moves import MoveKind, move_kind
from pollux_slurm.report.shadow import ShadowFindings, read_shadow, shadow_document
from pollux_slurm.store import open_store
from pollux_slurm.store.reporting.queries import open_view_reader
from tests.cli.inside import pollux
from tests.daemon.harness import Harness
from tests.store_fixtures import copied

# The goodput that the decisions predict for a job that stays; its agent measures 100 · 0.9.
PROMISED = 120.0


class Shadow(Harness):
    """Two jobs under a daemon in shadow mode that would give them `targets`."""

    def decide(self, problem: Problem) -> Decision:
        decided = []
        for job in problem.jobs:
            wanted = self.targets.get(job.job_id)
            target = job.current if job.pinned or wanted is None else Allocation.of(wanted)
            decided.append(
                JobDecision(
                    job_id=job.job_id,
                    allocation=target,
                    speedup=1.0,
                    goodput=PROMISED,
                    penalty=1.0,
                    batch=None,
                    bound_by="nothing",
                    runner_up=None,
                    runner_up_speedup=None,
                )
            )
        return Decision(jobs=tuple(decided), fitness=1.0, solver="test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shadow")


@pytest.fixture(scope="module")
def harness(store_template: Path, folder: Path) -> Iterator[Shadow]:
    """Job 1 keeps its 4 GPUs of n0; job 2 has 1 of n1, for which 3 and then 2 are decided."""
    harness = Shadow(open_store(copied(store_template, folder / "pollux.db")))
    daemon = harness.daemon(shadow=True)
    kept, small = harness.submit(gpus=4), harness.submit(gpus=1)
    harness.run_until(daemon, seconds=8, round_every_s=4)
    here = dict(harness.job(small).allocation.gpus_by_node)
    (node,) = here
    for gpus in (3, 2):
        harness.targets = {small: {node: gpus}}
        harness.run_until(daemon, seconds=20, round_every_s=4)
    harness.targets = {}
    assert harness.job(small).allocation == Allocation.of(here)
    assert harness.job(kept).allocation.num_gpus == 4
    yield harness
    harness.store.close()


def found(harness: Harness, folder: Path) -> tuple[ShadowFindings, Document]:
    range_ = Range(since=harness.clock() - timedelta(hours=1), until=harness.clock())
    with open_view_reader(f"sqlite:///{folder}/pollux.db") as reports:
        findings = read_shadow(reports, range_)
    return findings, shadow_document(
        findings, range_, made_at=harness.clock(), command="pollux report shadow"
    )


def facts(document: Document) -> dict[str, object]:
    return {fact.key: fact.value for fact in document.facts}


def test_that_a_move_counts_once_however_many_rounds_asked_for_it(harness: Shadow, folder: Path) -> None:
    findings, document = found(harness, folder)
    (first, second) = findings.wishes[0].proposals
    assert (first.kind, second.kind) == (MoveKind.GROW, MoveKind.GROW)
    assert (first.stood.num_gpus, first.decided.num_gpus, second.decided.num_gpus) == (1, 3, 2)
    assert first.num_rounds == second.num_rounds == 5
    assert findings.wishes[1].proposals == ()
    assert facts(document)["num_moves"] == 2
    assert "did not enact" in document.lead


def test_that_the_gain_is_the_decisions_speedup_over_that_of_what_stood(
    harness: Shadow, folder: Path
) -> None:
    findings, document = found(harness, folder)
    problem, _ = harness.store.rounds.problem(findings.weighed[-1].round.round_id)
    stood = fitness_of(problem, {job.job_id: job.current for job in problem.jobs})
    last = findings.weighed[-1]
    assert last.fitness_stood == pytest.approx(stood)
    assert (last.gpus_stood, last.gpus_decided) == (5, 6)
    assert last.fitness_decided > last.fitness_stood
    gain = last.gain
    assert gain is not None
    assert gain > 0
    assert facts(document)["num_weighed"] == len(findings.history.rounds)


def test_that_predictions_are_held_against_what_jobs_that_stayed_measured(
    harness: Shadow, folder: Path
) -> None:
    findings, document = found(harness, folder)
    table = document.table("goodput_predictions")
    rows = [dict(zip([c.key for c in table.columns], row, strict=True)) for row in table.rows]
    assert {row["slurm_job_id"]: row["num_gpus"] for row in rows} == {"1": 4, "2": 1}
    for row in rows:
        assert row["mean_error"] == pytest.approx(PROMISED / 90.0 - 1.0)
    # Job 2 was to be moved but for the first rounds, and what it then went on with was not predicted.
    kept = next(row["num_rounds"] for row in rows if row["slurm_job_id"] == "1")
    assert sum(one.slurm_job_id == "2" for one in findings.predictions) <= 2
    assert isinstance(kept, int)
    assert kept > 8
    assert facts(document)["median_goodput_error"] == pytest.approx(1 / 3)


def test_that_the_report_has_every_form(harness: Shadow, folder: Path) -> None:
    _, document = found(harness, folder)
    content = json.loads(document_json(document))
    assert content["report"] == "shadow"
    assert [row["num_grow"] for row in content["tables"]["shadow_jobs"]] == [2, 0]
    assert {row["kind"]: row["num_moves"] for row in content["tables"]["shadow_kinds"]}["grow"] == 2
    rows = list(csv.DictReader(io.StringIO(data_csv(document.table("shadow_moves")))))
    assert [(row["kind"], row["gpus_stood"], row["gpus_decided"]) for row in rows] == [
        ("grow", "1", "3"),
        ("grow", "1", "2"),
    ]
    assert "Mean speedup, as it stood" in document_html(document)
    done = pollux("report", "shadow", "--since", "2025-12-31", "--store", f"sqlite:///{folder}/pollux.db")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2, 2 grow" in done.stdout


def test_that_a_store_without_shadow_rounds_says_how_to_make_some(store_url: str) -> None:
    done = pollux("report", "shadow", "--store", store_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pollux daemon --shadow" in done.stdout


@pytest.mark.parametrize(
    ("stood", "decided", "kind"),
    [
        ({}, {"n0": 1}, MoveKind.START),
        ({"n0": 1}, {"n0": 2}, MoveKind.GROW),
        ({"n0": 2}, {"n1": 1}, MoveKind.SHRINK),
        ({"n0": 2}, {"n1": 2}, MoveKind.MOVE),
        ({"n0": 2}, {}, MoveKind.PAUSE),
        ({"n0": 2}, {"n0": 2}, None),
        ({}, {}, None),
    ],
)
def test_that_each_kind_of_move_has_its_name(
    stood: dict[str, int], decided: dict[str, int], kind: MoveKind | None
) -> None:
    assert move_kind(Allocation.of(stood), Allocation.of(decided)) is kind


def test_that_an_appraisal_leaves_out_what_it_is_told_to(harness: Shadow) -> None:
    problem, _ = harness.store.rounds.problem()
    current = {job.job_id: job.current for job in problem.jobs}
    both, nothing = evaluate(problem, current, {})
    assert set(both.speedups) == set(current)
    assert set(nothing.speedups.values()) == {0.0}
    (one,) = evaluate(problem, current, without={"1"})
    assert set(one.speedups) == {"2"}
