"""Read which nodes a job has, and how many GPUs on each.

The allocation is read from Slurm, not from the environment. After a requeue with another allocation,
SLURM_NTASKS, SLURM_GPUS, SLURM_TASKS_PER_NODE and the like still have the submitted values (22.05), and no
variable has the number of GPUs of the other nodes. On a single node, SLURM_GPUS_ON_NODE is correct.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pollux_slurm.errors import LaunchError, SlurmError, SlurmUnavailable
from pollux_slurm.launch.step.missing_gpus import requeue_if_gpus_missing
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.whole_numbers import whole_number

_READ_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)


def allocated_gpus(
    environ: Mapping[str, str],
    *,
    connect: Callable[[], SlurmClient],
    runner: CommandRunner,
    warn: Callable[[str], None],
    pause: Callable[[float], None],
) -> list[tuple[str, int]]:
    """Return (node, number of GPUs) in the order in which srun numbers the nodes.

    A job on several nodes that requested GPUs and owns none is requeued. Raises `LaunchError` when the
    allocation cannot be read.
    """
    job_id, own_node = environ["SLURM_JOB_ID"], environ.get("SLURMD_NODENAME")
    if own_node and environ.get("SLURM_JOB_NUM_NODES", "1") == "1":
        return [(own_node, whole_number(environ.get("SLURM_GPUS_ON_NODE", "")) or 0)]
    names = _host_names(environ.get("SLURM_JOB_NODELIST", ""), runner)
    problem: str = "Slurm does not know it"
    for wait_s in (*_READ_PAUSES_S, None):
        try:
            job = connect().read_job(job_id)
        except SlurmUnavailable as error:
            problem = str(error)
        except SlurmError as error:
            raise LaunchError(f"the allocation of job {job_id} cannot be read: {error}") from None
        else:
            gpus = job.allocation.as_dict() if job is not None else {}
            if job is not None and set(gpus) <= set(names) and (gpus or job.requested_gpus == 0):
                return [(name, gpus.get(name, 0)) for name in names]
            problem = f"Slurm shows {gpus or 'no GPUs'} for the nodes {names}"
        if wait_s is not None:
            pause(wait_s)
    requeue_if_gpus_missing(None, environ=environ, connect=connect, warn=warn, pause=pause)
    raise LaunchError(f"the allocation of job {job_id} cannot be read: {problem}")


def _host_names(host_list: str, runner: CommandRunner) -> list[str]:
    """Expand `n[0-1],m3`; scontrol does so without asking slurmctld."""
    answer = runner.run("scontrol", "show", "hostnames", host_list)
    names = answer.stdout.split()
    if answer.exit_code != 0 or not names:
        raise LaunchError(f"scontrol cannot expand SLURM_JOB_NODELIST={host_list!r}: {answer.error_text}")
    return names
