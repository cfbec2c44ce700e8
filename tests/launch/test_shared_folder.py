"""An ordinary job in a checkpoint folder that a group shares: it trains there, and harms nobody."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pollux_slurm.agent.checkpoints.failures import RankFailure, read_failures, record_failure
from pollux_slurm.agent.checkpoints.lineage import (
    Lineage,
    claim_run,
    newest_checkpoint,
    num_runs,
    read_claim,
)
from pollux_slurm.agent.checkpoints.out_of_memory import MemoryBound, read_bounds, record_bound
from pollux_slurm.agent.environment.layout import RunLayout
from pollux_slurm.agent.environment.token import ensure_token
from pollux_slurm.agent.environment.tracker_runs import keep_mlflow_run, tracker_variables
from pollux_slurm.errors import LaunchError
from pollux_slurm.launch.node.node_program import run_in_step
from pollux_slurm.launch.step.run_step import _read_exit_file
from pollux_slurm.system.private_files import write_private
from tests.people import ALL, User, two_users
from tests.waiting import ends_within

BOUND = MemoryBound(loader="train", failed=8, largest=4, device_bytes=0)
FAILURE = RankFailure(rank=0, host="n0", at_s=1.0, error="ValueError: x")
FOLDERS = ("runs", "checkpoints", "memory", "failures", "trackers")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "lab"
    for path in (folder, *(folder / name for name in FOLDERS)):
        path.mkdir()
        path.chmod(0o2775)
    return folder


def claim(folder: Path, restart_count: int = 0) -> Lineage:
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return claim_run(folder, restart_count=restart_count, host="n0", pid=1, at=at)


def fail_on_node(folder: Path) -> int | None:
    """Let a node's process fail with 7, and return what the batch script then reads."""
    layout = RunLayout(
        nodes=(("n0", 1),),
        master_addr="127.0.0.1",
        master_port=1,
        secret="x",
        exit_file=folder / "pollux-7-0.exit",
    )
    environ = {"POLLUX_STEP": layout.encode(), "SLURMD_NODENAME": "n0", "PATH": os.environ["PATH"]}
    assert run_in_step([sys.executable, "-c", "raise SystemExit(7)"], environ=environ) == 7
    return _read_exit_file(layout.exit_file)


def test_that_an_ordinary_job_keeps_all_its_files_where_a_group_may_write(shared: Path) -> None:
    token = ensure_token(shared / "job.token", os.getuid())
    assert ensure_token(shared / "job.token", os.getuid()) == token
    assert fail_on_node(shared) == 7
    claim(shared).write(lambda file: file.write(b"weights"))  # type: ignore[arg-type, return-value]
    resumed = claim(shared, 1).resume_path
    assert resumed is not None
    assert resumed.read_bytes() == b"weights"
    record_bound(shared, BOUND, run_number=0, rank=0)
    record_failure(shared, FAILURE, run_number=0)
    assert (read_bounds(shared), read_failures(shared, since_run=0)) == ((BOUND,), [FAILURE])
    first = tracker_variables(shared, {})
    keep_mlflow_run(shared, "0123abc")
    assert tracker_variables(shared, {})["MLFLOW_RUN_ID"] == "0123abc"
    assert tracker_variables(shared, {})["WANDB_RUN_ID"] == first["WANDB_RUN_ID"]
    assert not [path for path in shared.rglob("*") if path.suffix == ".tmp"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_that_a_member_goes_on_from_anothers_weights_with_their_own_token_and_trackers(shared: Path) -> None:
    ensure_token(shared / "job.token", os.getuid())
    claim(shared).write(lambda file: file.write(b"weights"))  # type: ignore[arg-type, return-value]
    record_bound(shared, BOUND, run_number=0, rank=0)
    tracker_variables(shared, {})
    for path in (shared, *shared.rglob("*")):
        os.chown(path, 65534, 65534)
    resumed = claim(shared, 1).resume_path
    assert resumed is not None
    assert resumed.read_bytes() == b"weights"
    assert (newest_checkpoint(shared), num_runs(shared)) == (resumed, 2)
    assert read_claim(shared, 0).resumed_from is None
    assert read_bounds(shared) == (BOUND,)
    with pytest.raises(LaunchError, match="belongs to another user: remove it"):
        ensure_token(shared / "job.token", os.getuid())
    assert "WANDB_RUN_ID" not in tracker_variables(shared, {})
    (shared / "pollux-7-0.exit").write_text("0\n")
    os.chown(shared / "pollux-7-0.exit", 65534, 65534)
    assert fail_on_node(shared) is None


def test_that_a_tracker_id_that_others_may_write_stays_and_its_line_has_the_cure(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tracker_variables(shared, {})
    file = shared / "trackers/wandb-run-id"
    file.chmod(0o666)
    # Without WANDB_RESUME, a start replaces a run of the user's own.
    assert tracker_variables(shared, {})["WANDB_RESUME"] == "allow"
    said = capsys.readouterr().err
    assert said == f"pollux: wandb begins a new run, since others may write {file}; run: chmod go-w {file}\n"
    assert tracker_variables(shared, {"WANDB_RUN_ID": "mine"})["WANDB_RESUME"] == "allow"
    assert capsys.readouterr().err == ""
    file.chmod(0o644)
    assert tracker_variables(shared, {}) == first


def test_that_no_fifo_in_the_folder_is_waited_for(shared: Path) -> None:
    weights = claim(shared).write(lambda file: file.write(b"weights"))  # type: ignore[arg-type, return-value]
    for name in ("memory/000000-000000.json", "failures/000000-000000.json", "trackers/wandb-run-id"):
        os.mkfifo(shared / name)
    os.mkfifo(shared / "checkpoints" / weights.path.name.replace("000001", "000002"))
    with ends_within(60, what="reading a FIFO"):
        assert (read_bounds(shared), read_failures(shared, since_run=0)) == ((), [])
        assert "WANDB_RUN_ID" not in tracker_variables(shared, {})
        assert claim(shared, 1).resume_path == weights.path


@pytest.mark.parametrize("change", [{"at_s": "now"}, {"error": 3}, {"rank": None}, {"place": ["x"]}])
def test_that_an_error_of_a_wrong_form_is_left_out(shared: Path, change: dict[str, object]) -> None:
    record_failure(shared, FAILURE, run_number=0)
    content = json.dumps(dataclasses.asdict(FAILURE) | change)
    (shared / "failures/000000-000001.json").write_text(content)
    assert read_failures(shared, since_run=0) == [FAILURE]


# What the owner's processes write, in a folder where another user waits for it.
WRITES = """
import sys
from pathlib import Path
from pollux_slurm.agent.checkpoints.failures import RankFailure, record_failure
from pollux_slurm.agent.checkpoints.lineage import record_checkpoints_elsewhere
from pollux_slurm.agent.checkpoints.out_of_memory import MemoryBound, record_bound
from pollux_slurm.agent.environment.tracker_runs import keep_mlflow_run
from pollux_slurm.trackers.logged_steps import LoggedSteps
folder = Path(sys.argv[1])
bound = MemoryBound(loader="train", failed=8, largest=4, device_bytes=0)
record_bound(folder, bound, run_number=0, rank=0)
record_failure(folder, RankFailure(rank=0, host="n0", at_s=1.0, error="x"), run_number=0)
keep_mlflow_run(folder, "0123abc")
record_checkpoints_elsewhere(folder, restart_count=0)
steps = LoggedSteps(folder, "run")
steps.note(5)
"""
TRAPS = (
    "memory/000000-000000.tmp",
    "memory/000000-000000.json",
    "failures/000000-000000.tmp",
    "failures/000000-000000.json",
    "trackers/mlflow-run-id",
    "trackers/logged-run",
    "kept-elsewhere-0",
)


# Who may write above a private folder exchanges it for their own, and back, all the time.
EXCHANGES = """
import os, sys
lab, job, theirs, away = sys.argv[1], *(os.path.join(sys.argv[1], name) for name in ("job", "theirs", "away"))
print("ready", flush=True)
while not os.path.exists(os.path.join(lab, "done")):
    os.rename(job, away)
    os.rename(theirs, job)
    os.rename(job, theirs)
    os.rename(away, job)
"""
READS = """
import collections, sys
from pathlib import Path
from pollux_slurm.launch.anchor.order import Order
from pollux_slurm.launch.submit.wing_request import WingRequest
from pollux_slurm.errors import LaunchError
lab, found = Path(sys.argv[1]), collections.Counter()
try:
    for _ in range(3000):
        for kind, suffix, name in ((WingRequest, "wing", "options"), (Order, "order", "command")):
            try:
                found[getattr(kind.read(lab / "job" / f"x.{suffix}"), name)] += 1
            except LaunchError:
                found["refused"] += 1
finally:
    (lab / "done").touch()
print(*(key if isinstance(key, str) else "".join(key) for key in found))
"""
ORDER = {
    **{"directory": "/", "anchor_id": "1", "address": "a", "port": 1, "link_secret": "s", "run_secret": "s"},
    **{"num_processes": None, "kill_after_s": 1.0, "wrapper": [], "srun_arguments": []},
}


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User]]:
    with two_users({}, imports=f"{ALL}, torch") as (owner, other):
        owner.home.chmod(0o755)
        yield owner, other


def lab(owner: User, name: str) -> Path:
    """Return a folder of the owner's that the other may write in, as a member of a group may."""
    folder = owner.home / name
    folder.mkdir()
    os.chown(folder, owner.user_id, owner.user_id)
    folder.chmod(0o777)
    return folder


def give(path: Path, user: User) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, user.user_id, user.user_id)


def test_that_no_words_of_another_user_are_read_while_they_exchange_the_folder(
    users: tuple[User, User],
) -> None:
    owner, other = users
    folder = lab(owner, "exchanged")
    for name, user, word in (("job", owner, "mine"), ("theirs", other, "theirs")):
        (folder / name).mkdir(mode=0o700)
        write_private(folder / name / "x.wing", json.dumps({"options": [word]}).encode())
        write_private(folder / name / "x.order", json.dumps({**ORDER, "command": [word]}).encode())
        give(folder / name, user)
    for path in (folder / "theirs", *(folder / "theirs").iterdir()):
        path.chmod(0o755)
    command = (*other.python, "-c", EXCHANGES, str(folder))
    with subprocess.Popen(
        command, user=other.name, group=other.name, extra_groups=[], env=other.env, stdout=subprocess.PIPE
    ) as exchanges:
        try:
            assert exchanges.stdout is not None
            assert exchanges.stdout.readline() == b"ready\n"
            done = owner.run(*owner.python, "-c", READS, str(folder))
        finally:
            (folder / "done").touch()
            exchanges.wait(60)
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    assert "mine" in found
    assert "theirs" not in found


@pytest.mark.torch
def test_that_another_users_links_are_never_written_through(users: tuple[User, User]) -> None:
    owner, other = users
    folder = lab(owner, "linked")
    for name in FOLDERS:
        lab(owner, f"linked/{name}")
    secret = owner.home / "secret"
    secret.write_text("mine")
    secret.chmod(0o600)
    give(secret, owner)
    for trap in TRAPS:
        # A file that is only touched would be made.
        target = secret.with_name("made") if trap == "kept-elsewhere-0" else secret
        done = other.run("ln", "-s", str(target), str(folder / trap))
        assert done.returncode == 0, done.stderr
    done = owner.run(*owner.python, "-c", WRITES, str(folder))
    assert done.returncode == 0, done.stderr
    assert secret.read_text() == "mine"
    assert not (owner.home / "made").exists()
