"""The last line of the log of a training that has failed."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pollux_slurm.agent.checkpoints.failures import RankFailure, error_text, record_failure
from pollux_slurm.agent.checkpoints.lineage import Lineage, claim_run
from pollux_slurm.launch.run.crash_report import Retry, say_what_failed
from tests.launch.run.test_launcher import pollux_run

ANSWER = RankFailure(
    rank=1, host="node2", at_s=7.0, error="ValueError: 42", place="train.py, line 9", is_cause=True
)
LOST = RankFailure(rank=0, host="node1", at_s=6.0, error="RuntimeError: gloo", is_cause=False)


def claimed(directory: Path) -> Lineage:
    return claim_run(
        directory,
        restart_count=0,
        host="node1",
        pid=os.getpid(),
        at=datetime(2026, 1, 1, tzinfo=timezone.utc),
        num_kept=2,
    )


def said(directory: Path, code: int, *, job_id: str | None = "3") -> tuple[int, list[str]]:
    lines: list[str] = []
    retry = Retry(command=["python", "my train.py"], num_processes=8, job_id=job_id)
    return say_what_failed(code, directory, retry, warn=lines.append), lines


def test_that_the_cause_is_named_with_the_checkpoint_and_the_way_on(tmp_path: Path) -> None:
    claimed(tmp_path).write(lambda file: file.write(b"states") and None)
    second = claimed(tmp_path)
    assert second.claim.run_number == 1
    # Earlier, and later of a run before.
    record_failure(tmp_path, LOST, run_number=1)
    record_failure(tmp_path, ANSWER, run_number=1)
    (tmp_path / "failures" / "000001-000007.json").write_text("[" * 100_000)
    record_failure(tmp_path, RankFailure(rank=5, host="", at_s=1.0, error="old"), run_number=0)
    code, (line,) = said(tmp_path, 1)
    assert code == 1
    assert line.startswith(
        "job 3 has failed. First was rank 1 on node2, with ValueError: 42 (train.py, line 9); its output is"
    )
    assert f"The checkpoint {second.resume_path} stays; to go on from it, scontrol requeue 3" in line
    assert line.endswith(
        f"cp -r {tmp_path} COPY; pollux run --nproc-per-node 2 --checkpoint-dir COPY -- python 'my train.py'"
    )
    assert "run the same command again" in said(tmp_path, 1, job_id=None)[1][0]


@pytest.mark.parametrize("code", [0, 130, 143])
def test_that_a_run_that_ended_well_or_stopped_says_nothing(tmp_path: Path, code: int) -> None:
    claimed(tmp_path)
    record_failure(tmp_path, LOST, run_number=0)
    assert said(tmp_path, code) == (code, [])
    assert said(tmp_path / "of the script", 1) == (1, [])


def test_that_a_rank_that_failed_counts_more_than_those_that_stopped(tmp_path: Path) -> None:
    claimed(tmp_path)
    record_failure(tmp_path, ANSWER, run_number=0)
    code, (line,) = said(tmp_path, 143)
    assert code == 1
    assert "No checkpoint was written yet" in line


def test_that_errors_are_one_line_of_bounded_length() -> None:
    assert error_text(ValueError("a\nb")) == "ValueError: a b"
    assert error_text(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(error_text(ValueError("x" * 9999))) == 300


# Rank 1 is killed, or ends by the script's own code; rank 0 then loses its connection.
SCRIPT = """
import os, signal, sys, time
from datetime import datetime, timezone
from pathlib import Path
from pollux_slurm.agent.checkpoints.failures import RankFailure, record_failure
from pollux_slurm.agent.checkpoints.lineage import claim_run
directory = Path(os.environ["POLLUX_CHECKPOINT_DIR"])
if os.environ["RANK"] == "0":
    claim_run(directory, restart_count=0, host="", pid=1, at=datetime.now(timezone.utc), num_kept=2)
    while not list(directory.glob("failures/*-000001.json")): time.sleep(0.01)
    lost = RankFailure(rank=0, host="", at_s=1.0, error="gloo", is_cause=False)
    record_failure(directory, lost, run_number=0)
    sys.exit(1)
while not list(directory.glob("runs/*.json")): time.sleep(0.01)
if sys.argv[1] == "killed": os.kill(os.getpid(), signal.SIGKILL)
os._exit(5)
"""


@pytest.mark.parametrize(
    ("end", "code", "how"), [("killed", 137, "signal SIGKILL"), ("exits", 5, "exit code 5")]
)
def test_that_a_rank_that_could_say_nothing_is_named_by_the_launcher(
    tmp_path: Path, end: str, code: int, how: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = ["--nproc-per-node", "2", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    done = pollux_run([*words, "--", sys.executable, str(script), end])
    assert done.returncode == code
    assert f"the training has failed. First was rank 1, with {how}" in done.stderr.splitlines()[-1]
