"""Forward a signal to the processes of the job's steps through Slurm, and to no other run of the job.

A batch script can outlive its run: slurmctld sets its node DOWN and requeues the job, which trains elsewhere.
When slurmd returns, it ends the old script. `scancel --signal` names a job, not a run. In 22.05 it repeats
for ten seconds while a job is being requeued, which is long enough to reach the next run.
"""

from __future__ import annotations

import contextlib
import signal

from pollux_slurm.errors import SlurmError
from pollux_slurm.slurm.commands.runner import CommandRunner

_READ_TIMEOUT_S = 5.0
# A requeued job starts no sooner than this after its kill.
_SIGNAL_TIMEOUT_S = 1.5


def signal_step(signum: int, *, job_id: str, restart_count: int, runner: CommandRunner) -> bool:
    """Signal the processes of the job's steps; False, without effect, when it is not RUNNING in that run.

    The same when slurmctld does not answer in time: in a requeue, or at the time limit, slurmd signals the
    steps itself. `restart_count` is SLURM_RESTART_COUNT, 0 where that is not set.
    """
    try:
        seen = runner.run(
            "squeue",
            "--noheader",
            "--states=all",
            f"--jobs={job_id}",
            "--Format=JobID:20,State:20,RestartCnt:20",
            timeout_s=_READ_TIMEOUT_S,
        )
        # If the job id is also that of an array, there is a line for each task.
        if [job_id, "RUNNING", str(restart_count)] not in [line.split() for line in seen.stdout.splitlines()]:
            return False
        name = signal.Signals(signum).name.removeprefix("SIG")
        with contextlib.suppress(SlurmError):  # timed out: the signal may have been sent
            runner.run("scancel", f"--signal={name}", job_id, timeout_s=_SIGNAL_TIMEOUT_S)
    except SlurmError:
        return False
    return True
