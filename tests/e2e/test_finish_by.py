"""A job that asks to be finished by a moment, from `pollux sbatch` to its end, on a real Slurm."""

from __future__ import annotations

import json

import pytest

from pollux_slurm.model import JobState, PromiseState
from tests.e2e.user_commands import DIGITS, UserCommands

# Its parts have tests of their own: the term, the wait for an answer, the daemon's rounds with a promise.
pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch, pytest.mark.full]


def ask(user: UserCommands, name: str, by: str) -> tuple[str, str]:
    """Submit a job of the kind that is known, and return its id and what sbatch says of its moment."""
    done = user.pollux(
        *("sbatch", "--parsable", f"--output={user.directory}/%j.log", "--kind=digits", f"--finish-by={by}"),
        *("--max-gpus=2", f"--job-name={name}", f"--checkpoint-dir={user.directory}/checkpoints/{name}"),
        *(str(DIGITS / "train.sbatch"), "--epochs=4", "--emulate-device=0.01,0.004"),
        f"--result={user.directory}/{name}.json",
    )
    assert done.returncode == 0, done.stderr
    user.submitted.append(done.stdout.strip())
    return user.submitted[-1], done.stderr


def test_that_a_promised_job_is_finished_by_its_moment(user: UserCommands) -> None:
    user.start_daemon()
    teacher = user.digits("teacher", "--kind=digits", max_gpus=2, epochs=4)
    assert user.wait_over(teacher).state is JobState.COMPLETED, user.log()

    kept, said = ask(user, "kept", "1h")
    assert kept.isdigit()
    assert ": fits with " in said, f"{said}\n{user.log()}"
    assert " at 90 %; " in said
    record = user.record(kept)
    assert record is not None
    assert record.promise is not None
    assert (record.promise.state, record.promise.least_gpus) == (PromiseState.ACCEPTED, 1)
    shown = json.loads(user.pollux("status", kept, "--json").stdout)[0]["promise"]
    assert shown["state"] == "accepted"
    assert shown["slack_s"] > 0
    assert "  finish     by " in user.pollux("explain", kept).stdout

    refused, said = ask(user, "refused", "30s")
    assert ": does not fit: earliest " in said, f"{said}\n{user.log()}"
    assert user.pollux("change", refused, "--finish-by=none").returncode == 0
    user.wait(lambda: user.store.jobs.get(refused).terms.finish_by is None, "the moment to be taken back")
    assert user.store.jobs.get(refused).promise is None

    over = user.wait_over(kept)
    assert over.state is JobState.COMPLETED, user.log()
    assert over.finished_at is not None
    assert over.terms.finish_by is not None
    assert over.finished_at <= over.terms.finish_by
    assert " UTC: in time" in user.pollux("explain", kept).stdout
    assert f"job {kept}: by " in (user.directory / "daemon.log").read_text()
