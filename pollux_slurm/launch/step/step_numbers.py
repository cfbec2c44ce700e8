"""Give the step of each run of a job a number that its last few runs did not have.

The step of an old run can continue: its node's slurmd is lost, the job is requeued and trains elsewhere. When
a process of the old step fails, or its srun is stopped, srun asks slurmctld to end the step by job and step
number. After a requeue Slurm counts steps from 0 again (22.05 to 26.05), so this would end the step of the
new run. A step number cannot be chosen, but Slurm assigns none twice in a run. So steps that run `true` use
up the first numbers; each takes a few hundredths of a second.
"""

from __future__ import annotations

from collections.abc import Mapping

from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.slurm.commands.runner import CommandRunner

# A process of a run further back has learnt from the store that its run is superseded.
_NUM_DISTINCT = 4
_TIMEOUT_S = 10.0
_OPTIONS = (
    *("--nodes=1", "--ntasks=1", "--overlap", "--gres=none", "--mem=0", "--input=none", "--mpi=none"),
    *("--quiet", "--job-name=pollux-step-number"),
)


def skip_step_numbers(restart_count: int, *, runner: CommandRunner, environ: Mapping[str, str]) -> None:
    """Use up the step numbers of the last runs. `environ` must contain no stale options of srun.

    Best effort: where srun fails or does not answer in time, the job's step gets whatever number is next.
    """
    # pyxis would start each of these steps in a container; srun is not quiet and verbose at once.
    unwanted = ("PYXIS_", "SLURM_DEBUG")
    environ = {key: value for key, value in environ.items() if not key.startswith(unwanted)}
    for _ in range(restart_count % _NUM_DISTINCT):
        try:
            runner.run("srun", *_OPTIONS, "true", environ=environ, timeout_s=_TIMEOUT_S)
        except SlurmUnavailable:
            return
