from __future__ import annotations

from pollux_slurm.slurm.sandbox import Sandbox


def test_that_jobs_see_the_gpus_that_slurm_gave_them(sandbox: Sandbox) -> None:
    show = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    done = sandbox.runner().run("srun", "--nodes=2", "--gpus=t4:5", "bash", "-c", show)
    assert sorted(done.stdout.split("\n")) == ["", "n0 0,1,2,3", "n1 0"]
