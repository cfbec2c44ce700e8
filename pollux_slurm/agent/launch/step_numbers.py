"""Give the step of each run of a job a number that the runs right before it did not have.

A run can outlive itself: its node's slurmd is lost, the job is requeued and trains elsewhere, while the old
step and its srun go on. Whatever that srun then wants to end, because a process of its failed or because it
was told to stop, it asks slurmctld to end by job and step number. After a requeue Slurm counts steps from 0
again (22.05 to 26.05), so without this it would end the step of the run that goes on. srun cannot be given a
number; but one that another step has had is not given twice, and a step of `true` takes a few hundredths of
a second.
"""

from __future__ import annotations

from collections.abc import Mapping

from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.slurm.commands.runner import CommandRunner

# A leftover of more runs ago than this has long learnt from the store that it is one.
_DISTINCT = 4
_TIMEOUT_S = 10.0
_OPTIONS = (
    *("--nodes=1", "--ntasks=1", "--overlap", "--gres=none", "--mem=0", "--input=none", "--mpi=none"),
    *("--quiet", "--job-name=pollux-step-number"),
)


def skip_step_numbers(restart_count: int, *, runner: CommandRunner, environ: Mapping[str, str]) -> None:
    """Use up the step numbers of the last runs. `environ` must hold nothing that srun would misread.

    Best effort: where srun refuses or does not answer in time, the job's step takes the number that comes.
    """
    for _ in range(restart_count % _DISTINCT):
        try:
            runner.run("srun", *_OPTIONS, "true", environ=environ, timeout_s=_TIMEOUT_S)
        except SlurmUnavailable:
            return
