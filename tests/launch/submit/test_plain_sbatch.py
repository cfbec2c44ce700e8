"""A job of plain sbatch that becomes adaptive: what it writes, and what happens if that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.token import read_token, token_sha256
from pollux_slurm.errors import SlurmCommandError, SlurmUnavailable
from pollux_slurm.launch.submit.changed_terms import changed_terms
from pollux_slurm.launch.submit.plain_sbatch import AdaptiveResult, make_adaptive
from pollux_slurm.model import Allocation, JobTerms
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.parsing.comment_terms import decode_comment, user_part
from pollux_slurm.slurm.parsing.job_json import MAY_NOT_BE_REQUEUED
from tests.fakes.slurm import FakeClock, FakeSlurm, fake_node


@pytest.fixture
def slurm() -> FakeSlurm:
    made = FakeSlurm([fake_node("n0")], clock=FakeClock())
    assert made.submit("#!/bin/sh", ["--gpus=2", "--comment=mine"], [], {}) == "1"
    made.snapshot()
    return made


def adopted(
    slurm: FakeSlurm, folder: Path, *, pause: Callable[[float], None] = lambda seconds: None
) -> AdaptiveResult:
    # This scontrol writes its arguments to a file.
    (folder / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {folder}/arguments.log\n')
    (folder / "scontrol").chmod(0o755)
    return make_adaptive(
        "1",
        token_file=folder / "token",
        min_gpus=2,
        max_gpus=4,
        allow_unconfirmed=True,
        client=slurm,
        runner=CommandRunner(environ={}, bin_dir=folder),
        pause=pause,
    )


def comment_of(slurm: FakeSlurm) -> str:
    job = slurm.read_job("1")
    assert job is not None
    return job.comment


def test_that_the_terms_follow_the_users_own_comment(slurm: FakeSlurm, tmp_path: Path) -> None:
    assert adopted(slurm, tmp_path) == AdaptiveResult(token_file=tmp_path / "token")
    assert user_part(comment_of(slurm)) == "mine"
    assert decode_comment(comment_of(slurm)) == JobTerms(
        token_sha256=token_sha256(read_token(tmp_path / "token")),
        user_id=1000,
        min_gpus=2,
        max_gpus=4,
        allow_unconfirmed=True,
    )
    assert not (tmp_path / "arguments.log").exists()


def test_that_a_later_run_keeps_token_and_comment(slurm: FakeSlurm, tmp_path: Path) -> None:
    adopted(slurm, tmp_path)
    before = (comment_of(slurm), read_token(tmp_path / "token"))
    slurm.calls.clear()
    assert adopted(slurm, tmp_path).problem is None
    assert (comment_of(slurm), read_token(tmp_path / "token")) == before
    assert "set_comment" not in [method for method, _ in slurm.calls]


def test_that_terms_that_the_owner_has_changed_stay_over_a_restart(slurm: FakeSlurm, tmp_path: Path) -> None:
    adopted(slurm, tmp_path)
    terms, comment = changed_terms(slurm, "1", max_gpus=16)
    slurm.set_comment("1", comment)
    assert adopted(slurm, tmp_path).problem is None
    assert decode_comment(comment_of(slurm)) == terms


def test_that_no_requeue_is_respected_where_the_site_lets_jobs_be_requeued(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.set_job("1", unschedulable_reason=MAY_NOT_BE_REQUEUED)
    monkeypatch.setattr(slurm, "settings", lambda: {"JobRequeue": "1"})
    assert adopted(slurm, tmp_path).problem == "job 1 has --no-requeue"
    assert not (tmp_path / "arguments.log").exists()
    assert comment_of(slurm) == "mine"
    monkeypatch.setattr(slurm, "settings", lambda: {"JobRequeue": "0"})
    adopted(slurm, tmp_path)
    assert (tmp_path / "arguments.log").read_text() == "update JobId=1 Requeue=1\n"


def test_that_a_job_without_requeue_gets_it(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.set_job("1", unschedulable_reason="it may not be requeued; submit with --requeue")
    refused = adopted(slurm, tmp_path)
    assert (tmp_path / "arguments.log").read_text() == "update JobId=1 Requeue=1\n"
    assert refused.token_file is None
    assert "job 1 cannot be moved: it may not be requeued" in str(refused.problem)
    assert comment_of(slurm) == "mine"


def test_that_what_slurm_refuses_is_the_returned_problem(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.fail("set_comment", SlurmCommandError("Access/permission denied"))
    assert adopted(slurm, tmp_path) == AdaptiveResult(token_file=None, problem="Access/permission denied")


def test_that_accounting_which_does_not_know_the_job_yet_is_given_time(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.fail("set_comment", SlurmCommandError("DB index is being set, try again in a bit"))
    pauses: list[float] = []
    assert adopted(slurm, tmp_path, pause=pauses.append).problem is None
    assert pauses == [1.0]
    assert decode_comment(comment_of(slurm)) is not None


@pytest.mark.parametrize("fault", ["down", "forgotten", "no GPUs", "token"])
def test_that_no_problem_keeps_a_job_from_training(slurm: FakeSlurm, tmp_path: Path, fault: str) -> None:
    if fault == "down":
        slurm.fail("read_job", SlurmUnavailable("slurmctld does not answer"))
    elif fault == "forgotten":
        slurm.forget("1")
    elif fault == "no GPUs":
        slurm.set_job("1", allocation=Allocation())
    else:
        (tmp_path / "token").write_text("somebody else's file")
    refused = adopted(slurm, tmp_path)
    assert refused.token_file is None
    assert refused.problem
