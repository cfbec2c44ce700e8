"""srun and mpirun in the place of `pollux run`, or within it: what is refused, and what is not."""

from __future__ import annotations

import pytest

from pollux_slurm.launch.submit.other_launchers import (
    launcher_without_run,
    refusal_of_script,
    refusal_within_run,
)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("srun python train.py", "srun"),
        ("/opt/slurm/bin/srun -n 4 --gpus=4 python train.py", "srun"),
        ("env -u A B=1 mpirun -np 4 python train.py", "mpirun"),
        ("mpiexec.hydra python train.py", "mpiexec.hydra"),
    ],
)
def test_that_another_launcher_within_run_is_refused_with_the_cure(command: str, name: str) -> None:
    refusal = refusal_within_run(command.split()) or ""
    assert refusal.startswith(f"pollux run -- {name}: ")
    assert refusal.endswith("write: pollux run -- python train.py")
    for script in (
        f"pollux run -- {command}",
        f"cd x\nPYTHONPATH=. /opt/bin/pollux run --min-gpus 2 \\\n    -- \\\n    {command} --lr 1 # so\n",
        f"python3 -m pollux_slurm run -- {command} && echo done",
    ):
        assert refusal_of_script(script) == refusal


@pytest.mark.parametrize(
    "command",
    [
        "python train.py srun",
        "env A=srun python train.py",
        "python -m mpirun",
        "torchrun train.py",
        "./srun.sh",
    ],
)
def test_that_other_commands_are_run(command: str) -> None:
    assert refusal_within_run(command.split()) is None
    assert refusal_of_script(f"pollux run -- {command}\n") is None


@pytest.mark.parametrize(
    "body",
    [
        "srun hostname\npollux run -- python train.py\nsrun sync\n",
        "pollux run --srun-args --mpi=pmix -- python train.py; srun true",
        "# pollux run -- srun python train.py is wrong\npollux run -- python train.py\n",
        "echo 'pollux run -- srun'",
        'pollux run -- python train.py --note "srun\n-- srun"\n',
        "srun -n1 pollux run -- python train.py\n",
    ],
)
def test_that_scripts_with_srun_beside_run_are_submitted(body: str) -> None:
    assert refusal_of_script(body) is None


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("module load cuda\nsrun python -u train.py\n", "srun"),
        ("OMP_NUM_THREADS=8 srun --gpus=4 \\\n   torchrun x\n", "srun"),
        ("  mpirun -np 4 ./env/bin/train.py", "mpirun"),
        ("srun hostname\npython train.py", None),
        ("# srun python train.py", None),
    ],
)
def test_that_a_launcher_that_starts_python_is_named(body: str, name: str | None) -> None:
    assert launcher_without_run(body) == name
