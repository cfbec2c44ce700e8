"""Submission on a real Slurm of two nodes with four fake GPUs each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.token import read_token, token_sha256
from pollux_slurm.config import Config
from pollux_slurm.launch.submit.given_words import POLLUX_OPTIONS
from pollux_slurm.launch.submit.submission import run_sbatch
from pollux_slurm.launch.submit.submission_plan import SubmissionPlan, plan_submission
from pollux_slurm.model import Allocation, JobShape, JobState
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.parsing.comment_terms import decode_comment, user_part
from pollux_slurm.slurm.sbatch.batch_script import parse_script
from pollux_slurm.slurm.sbatch.options import parse_words
from pollux_slurm.slurm.sbatch.request import SbatchRequest
from tests.launch.submit_directory import BODY, SubmitDirectory

TOKEN = "1000-" + "0" * 64


def test_that_tasks_and_variables_of_the_submission_do_not_affect_the_step(
    submit_dir: SubmitDirectory,
) -> None:
    # Left in its environment, SLURM_GPUS_PER_TASK would give the one task of each node a single GPU.
    options = ["--gpus-per-task=1", "--ntasks=3", "--mem-per-gpu=100", "--export=NONE"]
    job_id = submit_dir.submit(*options, "train.sbatch", "pass")
    ranks = submit_dir.ranks(0, 3)
    assert {env["WORLD_SIZE"] for env in ranks} == {"3"}
    assert {env["POLLUX_JOB_ID"] for env in ranks} == {job_id}
    assert submit_dir.wait(job_id, JobState.COMPLETED).exit_code == 0


def test_that_plain_sbatch_makes_a_job_adaptive_at_its_first_start(submit_dir: SubmitDirectory) -> None:
    (submit_dir.folder / "train.sbatch").write_text(
        BODY.replace("run --", "run --min-gpus 1 --max-gpus 6 --")
    )
    words = ["sbatch", "-o", "log", "--gpus=2", "--comment=mine", "--parsable", "train.sbatch", "wait"]
    done = submit_dir.run(*words, environ={"POLLUX_STORE_URL": f"sqlite:///{submit_dir.folder}/pollux.db"})
    job_id = done.stdout.strip()
    submit_dir.jobs.append(job_id)
    first = submit_dir.ranks(0, 2)
    comment = submit_dir.job(job_id).comment
    terms = decode_comment(comment)
    assert terms is not None
    assert (user_part(comment), terms.min_gpus, terms.max_gpus) == ("mine", 1, 6)
    assert terms.token_sha256 == token_sha256(read_token(Path(first[0]["POLLUX_TOKEN_FILE"])))

    submit_dir.slurm.requeue_hold(job_id)
    submit_dir.wait(job_id, JobState.PENDING)
    submit_dir.slurm.reshape(job_id, JobShape.of(Allocation.of({"n0": 1, "n1": 2})))
    submit_dir.slurm.release(job_id)
    second = submit_dir.ranks(1, 3)
    assert {env["POLLUX_TOKEN_FILE"] for env in second} == {first[0]["POLLUX_TOKEN_FILE"]}
    assert submit_dir.job(job_id).comment == comment
    (submit_dir.folder / "go").touch()
    submit_dir.wait(job_id, JobState.COMPLETED)


def test_that_plain_sbatch_without_a_store_or_gpus_trains_at_its_fixed_size(
    submit_dir: SubmitDirectory,
) -> None:
    (submit_dir.folder / "train.sbatch").write_text(BODY)
    # A job must not use the variables of the adaptive job that submitted it, here in a step of its third run.
    inherited = {"POLLUX_JOB_ID": "9999", "POLLUX_TOKEN_FILE": "/none", "POLLUX_CHECKPOINT_DIR": "/none"}
    inherited |= {"SLURM_RESTART_COUNT": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    store = {"POLLUX_STORE_URL": f"sqlite:///{submit_dir.folder}/pollux.db"}
    for words, environ in ((["--gpus=1"], inherited), (["-n1"], {**inherited, **store})):
        words = ["sbatch", "-o", "log", "--wait", "--parsable", *words, "train.sbatch", "pass"]
        done = submit_dir.run(*words, environ=environ)
        job_id = done.stdout.strip()
        assert done.returncode == 0, submit_dir.log()
        (env,) = submit_dir.ranks(0, 1)
        assert "POLLUX_TOKEN_FILE" not in env
        assert env["POLLUX_CHECKPOINT_DIR"] == str(submit_dir.folder / "pollux-checkpoints" / f"job-{job_id}")
        assert submit_dir.job(job_id).comment == ""
        (submit_dir.folder / "0.0.json").unlink()
    assert f"pollux: job {job_id} trains at its fixed size: job {job_id} owns no GPUs" in submit_dir.log()


def test_that_a_refusal_by_sbatch_has_its_message_and_code_and_leaves_no_files(
    submit_dir: SubmitDirectory,
) -> None:
    (submit_dir.folder / "train.sbatch").write_text(BODY)
    done = submit_dir.pollux_sbatch("-p", "nowhere", "train.sbatch")
    assert done.returncode == 1
    assert "sbatch: error: " in done.stderr
    assert "invalid partition" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert not (submit_dir.folder / "pollux-checkpoints").exists()


def test_that_test_only_leaves_nothing_and_hold_and_parsable_work_as_in_sbatch(
    submit_dir: SubmitDirectory,
) -> None:
    (submit_dir.folder / "train.sbatch").write_text(BODY)
    done = submit_dir.pollux_sbatch("--test-only", "train.sbatch")
    assert done.returncode == 0
    assert "to start at" in done.stderr
    assert not (submit_dir.folder / "pollux-checkpoints").exists()
    held = submit_dir.pollux_sbatch("-H", "--parsable", "train.sbatch", "pass")
    assert re.fullmatch(r"[0-9]+\n", held.stdout)
    assert submit_dir.job(held.stdout.strip()).held


def test_that_python_can_submit_what_the_command_can(
    submit_dir: SubmitDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    (submit_dir.folder / "train.sbatch").write_text(BODY)
    runner = CommandRunner(environ=submit_dir.environ)

    def submit(*words: str, identifier: str) -> tuple[int, SubmissionPlan]:
        token = TOKEN if identifier == "a" else TOKEN[:-1] + identifier
        plan = plan_submission(
            parse_words([*words, "train.sbatch", "pass"], exact=POLLUX_OPTIONS),
            environ=submit_dir.environ,
            cwd=submit_dir.folder,
            config=Config(),
            token=token,
            identifier=identifier,
            read_stdin=lambda: b"",
        )
        environ, cwd = submit_dir.environ, submit_dir.folder
        code = run_sbatch(plan, token=token, runner=runner, environ=environ, cwd=cwd, say=print)
        return code, plan

    code, held = submit("-H", "--parsable", identifier="a")
    assert code == 0
    submit_dir.jobs.append(capfd.readouterr().out.strip())
    job = submit_dir.job(submit_dir.jobs[-1])
    assert decode_comment(job.comment) == held.terms
    assert read_token(held.token_file) == TOKEN
    code, refused = submit("-p", "nowhere", identifier="b")
    assert code == 1
    assert "invalid partition" in capfd.readouterr().err
    assert not refused.token_file.exists()


def test_that_directives_and_variables_are_read_as_sbatch_reads_them(
    submit_dir: SubmitDirectory,
) -> None:
    lines = [
        '#SBATCH --job-name="a b" --comment=one # --comment=remark',
        "# a remark, and a blank line",
        "",
        "#SBATCH --comment 'two \\'#\\' three' -G 1",
        " #SBATCH --comment=indented",
        "##SBATCH --comment=twice",
        "#SBATCH --gpus=2",
        "true",
        "#SBATCH --comment=late",
    ]
    text = "#!/bin/bash\n" + "\n".join(lines) + "\n"
    (submit_dir.folder / "odd.sbatch").write_text(text)

    def both(words: Sequence[str], environ: dict[str, str]) -> tuple[list[object], list[object]]:
        done = submit_dir.run("sbatch", "-H", "--parsable", *words, "odd.sbatch", environ=environ)
        submit_dir.jobs.append(done.stdout.strip())
        job = submit_dir.job(submit_dir.jobs[-1])
        directives = parse_words(parse_script(text, source="odd").directives).options
        ours = SbatchRequest.of(parse_words(words).options, {**submit_dir.environ, **environ}, directives)
        return (
            [job.name, job.comment, str(job.requested_gpus)],
            [ours.value("job-name"), ours.value("comment"), ours.value("gpus")],
        )

    theirs, ours = both([], {})
    assert theirs == ours == ["a b", "two '#' three", "2"]
    theirs, ours = both([], {"SBATCH_GPUS": "3", "SBATCH_JOB_NAME": "c"})
    assert theirs == ours == ["c", "two '#' three", "3"]
    theirs, ours = both(["--comm", "four", "-G4", "--gpus", "1"], {"SBATCH_GPUS": "3"})
    assert theirs == ours == ["a b", "four", "1"]
