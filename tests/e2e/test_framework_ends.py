"""How jobs of other frameworks end in Slurm: by an error, by scancel, at their time limit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pollux_slurm.model import JobState
from tests.e2e.user_commands import ROOT, UserCommands

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch, pytest.mark.full]


def examples(user: UserCommands, name: str, *, fail: bool = False) -> Path:
    """Return a copy of the examples; with `fail` one replica fails in a step."""
    folder = user.directory / name / "examples"
    shutil.copytree(ROOT / "examples", folder, ignore=shutil.ignore_patterns("__pycache__"))
    if fail:
        common = folder / "common.py"
        text = common.read_text()
        assert "            time.sleep(left_s)\n" in text
        failing = (
            "            assert dist.get_rank() == 0, 'the device fails'\n            time.sleep(left_s)\n"
        )
        common.write_text(text.replace("            time.sleep(left_s)\n", failing))
    return folder


@pytest.mark.parametrize("framework", ["lightning", "accelerate", "trainer", "trackers"])
def test_that_an_error_scancel_and_the_time_limit_end_a_job_as_slurm_expects(
    user: UserCommands, framework: str
) -> None:
    user.start_daemon()

    def submit(folder: Path, *options: str) -> str:
        return user.sbatch(
            "--gpus=2",
            "--min-gpus=2",
            "--max-gpus=2",
            f"--chdir={folder / framework}",
            # The copy comes before the folder that the package is installed from.
            f"--export=ALL,POLLUX_EXAMPLE_DIR={folder / framework},PYTHONPATH={folder.parent}",
            f"--checkpoint-dir={folder}/checkpoints",
            *options,
            str(folder / framework / "train.sbatch"),
            "--epochs=5000",
            "--emulate-device=0.1,0.01",
        )

    limited = submit(examples(user, "limited"), "--time=2")
    failing = submit(examples(user, "failing", fail=True))
    assert user.wait_over(failing).state is JobState.FAILED, user.log()
    cancelled = submit(examples(user, "cancelled"))

    def has_trained(job_id: str) -> bool:
        record = user.record(job_id)
        return record is not None and record.sample is not None and record.sample.throughput is not None

    user.wait(lambda: has_trained(cancelled), "the job to train")
    user.slurm.cancel(cancelled)
    assert user.wait_over(cancelled).state is JobState.CANCELLED, user.log()
    # SIGTERM comes before the limit, so that Slurm sees an exit code and no timeout.
    assert user.wait_over(limited).state is JobState.FAILED, user.log()
    job = user.slurm.read_job(limited)
    assert job is not None
    assert job.exit_code == 143
    assert "AssertionError: the device fails" in (user.directory / f"{failing}.log").read_text()
    for name, job_id in (("cancelled", cancelled), ("limited", limited)):
        log = (user.directory / f"{job_id}.log").read_text()
        assert "its checkpoint is written" in log, log
        assert any((user.directory / name / "examples" / "checkpoints").rglob("checkpoint*")), log
