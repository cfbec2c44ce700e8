"""Containers and torchrun on a real Slurm, where Apptainer and pyxis are not installed.

`unshare` stands for the container. For pyxis, a script before srun on PATH starts the step's tasks in one.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from pollux_slurm.model import Allocation, JobShape, JobState
from pollux_slurm.system.process_control import processes_with_environ
from tests.launch.node.stand_in_container import needs_namespaces, write_container
from tests.launch.submit_directory import SubmitDirectory
from tests.waiting import wait_until

pytestmark = needs_namespaces


TORCHRUN = ("-m", "torch.distributed.run")


def body(*options: str) -> str:
    command = shlex.join([sys.executable, "-m", "pollux_slurm", "run", *options, "--"])
    return f'#!/bin/bash\n{command} {sys.executable} -S rank.py "$@"\n'


def assert_saved_and_moved(submit_dir: SubmitDirectory, job_id: str) -> None:
    """Move a job of 4 + 1 GPUs by a requeue: its processes save, and come back."""
    first = submit_dir.ranks(0, 5)
    assert {env["POLLUX_GPUS_PER_NODE"] for env in first} == {"4,1"}
    assert [len(env["CUDA_VISIBLE_DEVICES"].split(",")) for env in first] == [4, 4, 4, 4, 1]
    submit_dir.slurm.requeue_hold(job_id)
    submit_dir.wait(job_id, JobState.PENDING)
    assert submit_dir.saved() == [f"0.{rank}.saved" for rank in range(5)]
    submit_dir.slurm.reshape(job_id, JobShape.of(Allocation.of({"n1": 2})))
    submit_dir.slurm.release(job_id)
    second = submit_dir.ranks(1, 2)
    assert {env["POLLUX_CHECKPOINT_DIR"] for env in second} == {first[0]["POLLUX_CHECKPOINT_DIR"]}
    (submit_dir.folder / "go").touch()
    assert submit_dir.wait(job_id, JobState.COMPLETED).exit_code == 0, submit_dir.log()


def test_that_wrapped_processes_save_when_the_job_is_requeued(submit_dir: SubmitDirectory) -> None:
    wrapper = shlex.quote(str(write_container(submit_dir.folder)))
    script = body("--wrap-with", wrapper, "--srun-args", "--label --cpu-bind=verbose,none")
    job_id = submit_dir.submit("--gpus=5", "--nodes=2", "train.sbatch", "wait", body=script)
    first = submit_dir.ranks(0, 5)
    assert {env["PID"] for env in first} == {"1"}
    assert_saved_and_moved(submit_dir, job_id)


def test_that_the_exit_code_of_a_wrapped_rank_is_the_jobs(submit_dir: SubmitDirectory) -> None:
    wrapper = shlex.quote(str(write_container(submit_dir.folder)))
    script = body("--kill-after=2", "--wrap-with", wrapper)
    job_id = submit_dir.submit("--gpus=5", "--nodes=2", "train.sbatch", "fail", "4", "7", body=script)
    submit_dir.ranks(0, 5)
    assert submit_dir.wait(job_id, JobState.FAILED).exit_code == 7


def test_that_torchrun_follows_the_allocation(submit_dir: SubmitDirectory) -> None:
    torchrun = shlex.join([sys.executable, "-m", "pollux_slurm", "run", "--", sys.executable, *TORCHRUN])
    job_id = submit_dir.submit(
        *("--gpus=5", "--nodes=2", "train.sbatch", "wait"), body=f'#!/bin/bash\n{torchrun} rank.py "$@"\n'
    )
    assert_saved_and_moved(submit_dir, job_id)


# srun with pyxis: the command of each task starts in the container.
PYXIS = """#!/bin/bash
options=() container=()
while [[ $1 == --* ]]; do
  case $1 in
    --container-image=*) container=("CONTAINER") ;;
    *) options+=("$1") ;;
  esac
  shift
done
exec SRUN "${options[@]}" "${container[@]}" "$@"
"""


def write_srun(submit_dir: SubmitDirectory, container: Path) -> dict[str, str]:
    """Write the script before srun, and return PATH with it and with the container's `python3`."""
    real = submit_dir.run("bash", "-c", "type -P srun").stdout.strip()
    folder = submit_dir.folder / "bin"
    folder.mkdir()
    (folder / "srun").write_text(PYXIS.replace("CONTAINER", str(container)).replace("SRUN", real))
    (folder / "srun").chmod(0o755)
    return {"PATH": f"{folder}:{Path(sys.executable).parent}:{submit_dir.environ['PATH']}"}


def test_that_a_step_in_a_container_is_run_by_the_python_inside(submit_dir: SubmitDirectory) -> None:
    path = write_srun(submit_dir, write_container(submit_dir.folder))
    script = body("--srun-args", "--container-image /images/train.sqsh")
    words = ("--gpus=5", "--nodes=2", "train.sbatch", "wait")
    job_id = submit_dir.submit(*words, body=script, environ=path)
    assert_saved_and_moved(submit_dir, job_id)


def test_that_a_step_in_a_container_without_the_checkpoint_folder_fails_at_once(
    submit_dir: SubmitDirectory,
) -> None:
    hidden = submit_dir.folder / "pollux-checkpoints"
    path = write_srun(
        submit_dir, write_container(submit_dir.folder, before=f'mount -t tmpfs none "{hidden}"')
    )
    script = body("--srun-args", "--container-image=/images/train.sqsh")
    job_id = submit_dir.submit("--gpus=1", "train.sbatch", "wait", body=script, environ=path)
    assert submit_dir.wait(job_id, JobState.FAILED).exit_code == 1
    assert "cannot be seen in the container on n0: mount it (pyxis: --container-mounts)" in submit_dir.log()


def test_that_no_wrapped_rank_outlives_a_killed_launcher(submit_dir: SubmitDirectory) -> None:
    wrapper = shlex.quote(str(write_container(submit_dir.folder)))
    command = body("--wrap-with", wrapper).splitlines()[1]
    wait_for_ranks = "while [ ! -e 0.0.json ] || [ ! -e 0.1.json ]; do sleep 0.1; done"
    wait_for_us = "while [ ! -e go ]; do sleep 0.1; done"
    script = (
        f"#!/bin/bash\n{command} &\n{wait_for_ranks}\nkill -KILL $!\nwait $!\ntouch killed\n{wait_for_us}\n"
    )
    job_id = submit_dir.submit("--gpus=2", "train.sbatch", "wait", body=script)
    secret = submit_dir.ranks(0, 2)[0]["POLLUX_RUN_SECRET"]
    wait_until((submit_dir.folder / "killed").exists, timeout_s=120, what="the end of the launcher")
    wait_until(
        lambda: not processes_with_environ({"POLLUX_RUN_SECRET": secret}),
        timeout_s=120,
        what="the end of the ranks",
    )
    assert submit_dir.job(job_id).state is JobState.RUNNING
