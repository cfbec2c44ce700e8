"""Jobs that move in place, on real Slurm: wings come and go while the script trains on."""

from __future__ import annotations

import json
import subprocess

import pytest

from pollux_slurm.model import JobState, ReallocationStep, ReallocationWay
from pollux_slurm.store.contract.interface import Reallocation
from tests.e2e.user_commands import UserCommands

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch]

SETTINGS = '[moves]\ngpu_types_without_nvlink = ["*"]\n'


@pytest.fixture
def in_place(user: UserCommands, monkeypatch: pytest.MonkeyPatch) -> UserCommands:
    """A site whose jobs may have several wings on a node."""
    file = user.directory / "pollux.toml"
    file.write_text(SETTINGS)
    monkeypatch.setenv("POLLUX_CONFIG", str(file))
    return user


def wings_in_queue(user: UserCommands) -> list[str]:
    """Return the wings that are not over, by name."""
    done = subprocess.run(
        ["squeue", "--noheader", "--Format=Name:60"], env=user.env, capture_output=True, text=True, check=True
    )
    return [line.strip() for line in done.stdout.splitlines() if "+" in line]


def test_that_a_job_grows_and_gives_way_in_place_and_is_exact(in_place: UserCommands) -> None:
    """Grow to another node, give a wing to a second job, end; every sample once."""
    user = in_place
    # A GPU of each node is left: each further process costs seconds of CPU at its start.
    others = [user.plain("sleep 900", "--gpus=3", "--nodes=1", f"--nodelist={node}") for node in ("n0", "n1")]
    user.wait(lambda: all(user.gpus(one) == 3 for one in others), "the unmanaged jobs to start")
    user.start_daemon()
    first = user.digits("first", "--gpus=1", "--in-place", epochs=12, pass_s="0.015,0.012")

    def in_place_move(*, shrink: bool) -> Reallocation | None:
        for move in user.store.journal.reallocations(first):
            gained = move.target.num_gpus - move.source.num_gpus
            is_done = move.way is ReallocationWay.IN_PLACE and move.step is ReallocationStep.CONFIRMED
            if is_done and (gained < 0) is shrink:
                return move
        return None

    grown = user.wait(lambda: in_place_move(shrink=False), "the first job to grow in place", every_s=0.5)
    assert grown is not None
    assert [step.value for step, _ in grown.times] == [
        *("planned", "regroup_requested", "regrouped", "confirmed")
    ]
    assert grown.standstill_s is not None
    second = user.digits("second", "--gpus=1", epochs=6, max_gpus=1, pass_s="0.01,0.008")
    user.wait(lambda: user.gpus(second) == 1, "the second job to start", every_s=0.5)

    for job_id, name in ((first, "first"), (second, "second")):
        record = user.wait_over(job_id)
        assert record.state is JobState.COMPLETED, user.log()
        result = json.loads((user.directory / f"{name}.json").read_text())
        assert result["accuracy"] >= 0.95
        assert [(epoch["min"], epoch["max"]) for epoch in result["audit"]] == [(1, 1)] * result["epochs"]
    assert wings_in_queue(user) == []
    log = (user.directory / f"{first}.log").read_text()
    assert f"pollux: job {first}: start 1 of the training waits as job " in log
    assert f"pollux: job {first} goes on with " in log


# tests/functions/test_on_slurm.py has the loss of a wing without a daemon, and the start after it;
# test_whole_way.py a training that goes on from its checkpoint.
@pytest.mark.full
def test_that_without_a_daemon_a_job_trains_and_outlives_the_loss_of_its_wing(in_place: UserCommands) -> None:
    """It starts by itself; where its wing is cancelled, the next start goes on from the checkpoint."""
    user = in_place
    job_id = user.digits("alone", "--gpus=2", "--in-place", epochs=6, pass_s="0.01,0.008")
    log = user.directory / f"{job_id}.log"
    user.wait(lambda: log.exists() and "epoch 1:" in log.read_text(), "its second epoch", every_s=0.5)
    (wing,) = wings_in_queue(user)
    assert wing == "alone+0"
    number = _number_of(user, wing, "RUNNING")
    subprocess.run(["scancel", number], env=user.env, check=True)
    waiting = user.wait(lambda: _number_of(user, wing, "PENDING"), "the next start")
    # It would start two minutes later, as after a requeue.
    subprocess.run(["scontrol", "update", f"JobId={waiting}", "StartTime=now"], env=user.env, check=True)

    def ended() -> bool:
        job = user.slurm.read_job(job_id)
        return job is not None and job.state.is_over

    user.wait(ended, "the job to end", every_s=0.5)
    assert f"pollux: job {job_id}: start 2 trains on " in log.read_text()
    result = json.loads((user.directory / "alone.json").read_text())
    assert [(epoch["min"], epoch["max"]) for epoch in result["audit"]] == [(1, 1)] * result["epochs"]


def test_that_a_job_is_shown_and_once_cancelled_leaves_no_wing(in_place: UserCommands) -> None:
    user = in_place
    user.start_daemon()
    # At most one GPU, so that it stays where it is.
    job_id = user.digits("shown", "--gpus=1", "--in-place", epochs=500, max_gpus=1)

    def has_goodput() -> bool:
        record = user.record(job_id)
        return record is not None and record.sample is not None and record.sample.goodput is not None

    user.wait(has_goodput, "a goodput sample")
    (shown,) = json.loads(user.pollux("status", "--json").stdout)
    assert (shown["slurm_job_id"], shown["name"], shown["state"]) == (job_id, "shown", "running")
    assert shown["goodput"] > 0
    assert "shown" in user.pollux("status").stdout

    def is_decided() -> bool:
        record = user.record(job_id)
        return record is not None and record.last_decision_bound_by not in (None, "pinned")

    user.wait(is_decided, "a round that decides by the job's model")
    explained = user.pollux("explain", job_id, "--json")
    found = json.loads(explained.stdout)
    assert (found["slurm_job_id"], found["objective"]) == (job_id, "generalized-mean"), explained.stderr
    assert found["speedup"] > 0
    assert found["explanation"].startswith(f"job {job_id}: n")
    missing = user.pollux("status", "999999")
    assert missing.returncode != 0
    assert len(missing.stderr.strip().splitlines()) == 1
    assert "999999" in missing.stderr

    user.stop_daemon()
    log = user.directory / f"{job_id}.log"
    user.slurm.cancel(job_id)
    user.wait(lambda: not wings_in_queue(user), "its wing to end", every_s=0.5)
    assert "its checkpoint is written" in log.read_text()


def _number_of(user: UserCommands, name: str, state: str) -> str:
    done = subprocess.run(
        ["squeue", "--noheader", f"--states={state}", f"--name={name}", "--Format=JobID:20"],
        env=user.env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
