"""Jobs of other frameworks, on real Slurm under the real daemon: grown to four GPUs and shrunk to two."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise

import pytest

from pollux_slurm.model import JobState
from tests.e2e.user_commands import ROOT, UserCommands

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch]

EPOCHS = 14


def submit(user: UserCommands, name: str, epochs: int) -> str:
    """Submit a copy of an example at one GPU: what it writes stays beside it."""
    shutil.copytree(
        ROOT / "examples", user.directory / "examples", ignore=shutil.ignore_patterns("__pycache__")
    )
    folder = user.directory / "examples" / name
    return user.sbatch(
        "--gpus=1",
        "--max-gpus=4",
        f"--job-name={name}",
        f"--chdir={folder}",
        f"--export=ALL,POLLUX_EXAMPLE_DIR={folder}",
        f"--checkpoint-dir={user.directory}/checkpoints/{name}",
        str(folder / "train.sbatch"),
        f"--epochs={epochs}",
        "--emulate-device=0.02,0.008",
        f"--result={user.directory}/{name}/result.json",
        "--audit",
    )


# Two to four minutes each. Moves of each framework are tested without Slurm, those by Slurm without one.
@pytest.mark.full
@pytest.mark.parametrize("name", ["lightning", "accelerate", "trainer", "trackers"])
def test_that_a_job_grows_to_four_gpus_shrinks_to_two_and_uses_each_example_once(
    user: UserCommands, name: str
) -> None:
    (user.directory / name).mkdir()
    user.plain("sleep 900", "--gpus=4", "--nodes=1", "--nodelist=n1")
    user.start_daemon()
    job_id = submit(user, name, epochs=EPOCHS)
    user.wait_gpus(job_id, at_least=4)
    user.plain("sleep 900", "--gpus=2", "--nodes=1", "--nodelist=n0")
    user.wait_confirmed(job_id, shrink=True)

    assert user.wait_over(job_id).state is JobState.COMPLETED, user.log()
    result = json.loads((user.directory / name / "result.json").read_text())
    assert [(epoch["min"], epoch["max"]) for epoch in result["audit"]] == [(1, 1)] * EPOCHS
    runs = user.store.history.runs(job_id)
    sizes = [sum(run.gpus_per_node) for run in runs]
    assert (sizes[0], sizes[-2:]) == (1, [4, 2])
    for earlier, later in pairwise(runs):
        assert earlier.last_report_at <= later.first_report_at
