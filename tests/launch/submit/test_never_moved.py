"""What is said at submission of jobs that no daemon can move, and of which jobs nothing is said."""

from __future__ import annotations

import pytest

from tests.launch.submit.test_submission_plan import STORED, plan


@pytest.mark.parametrize(
    ("words", "because"),
    [
        ("--gres=gpu:2,nvme:1", "it asks for other generic resources, too (nvme)"),
        ("--gpus=1 --gres=tmpdisk:100G", "it asks for other generic resources, too (tmpdisk)"),
        ("--gres=shard:2", "it asks for other generic resources, too (shard)"),
        ("--gpus=a100:2,t4:1", "it asks for GPUs of several types (a100, t4)"),
        ("--gpus-per-socket=1 --sockets-per-node=2", "it asks for GPUs by socket; use --gpus"),
        ("-C (a|b)&c", "its --constraint=(a|b)&c is more than features joined by & or by |"),
        ("-w n0,n1", "its owner asks for 2 nodes by name (--nodelist)"),
        ("-F nodes", "its owner asks for nodes by name (--nodefile)"),
    ],
)
def test_that_what_can_never_move_is_said_with_the_reason(words: str, because: str) -> None:
    found = plan(words.split(), config=STORED).warnings
    assert f"the job is never moved, and keeps the GPUs that it starts with: {because}" in found


@pytest.mark.parametrize("words", ["--contiguous", "-C [rack1|rack2]"])
def test_that_a_job_that_is_kept_on_one_node_is_told_so(words: str) -> None:
    (found,) = plan(words.split(), config=STORED).warnings
    assert found.startswith("the job is given GPUs of one node only, once it is moved: --con")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--gpus=a100:2",
        "--gpus-per-node=2 --nodes=2",
        "--gres=gpu:a100:4",
        "--gres=gpu",
        "--gres=none --gpus=1",
        "--gpus-per-task=1 --ntasks=2",
        "--tres-per-task=gres/gpu:1,cpu=4",
        "-C a100",
        "-C a&b",
        "-C a|b",
        "-C [v100]",
        "-x n[0-3]",
        "-w n0",
        "-p a,b --qos=x --switches=1",
    ],
)
def test_that_nothing_is_said_of_jobs_that_can_move(words: str) -> None:
    assert plan(words.split(), config=STORED).warnings == ()
