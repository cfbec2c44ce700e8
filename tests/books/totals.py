"""Each job's GPU seconds in the store against sacct's, its wings included."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.store.contract.interface import Store
from tests.books.check import WANTED
from tests.store.schema.test_views import rows_of
from tests.waiting import wait_until


def totals_compared(store: Store, names: Mapping[str, str], sacct: CommandRunner) -> tuple[list[str], str]:
    """Compare each job's GPU seconds with sacct's of the job and its wings, to a second a GPU and run.

    `names` are the jobs' names by number; all have ended. Return what differs, and the sums as text. Those
    that the store itself calls estimated are counted only: nobody looked when their runs ended.
    """
    runs = wait_until(lambda: _ended_runs(sacct), timeout_s=300, what="slurmdbd to have every end", every_s=1)
    rows = {str(row["slurm_job_id"]): row for row in rows_of(store, WANTED)}
    stored_s = slurm_s = 0.0
    estimated = 0
    wrong = []
    for job_id, name in names.items():
        own = [(gpus, lasted_s) for number, run_name, gpus, lasted_s in runs
               if number == job_id or run_name.startswith(f"{name}+")]  # fmt: skip
        by_slurm_s, slack_s = sum(gpus * lasted_s for gpus, lasted_s in own), sum(gpus for gpus, _ in own)
        row = rows.get(job_id)
        by_store_s = 0.0 if row is None else 3600.0 * float(row["gpu_hours"])
        if row is not None and row["estimated"]:
            estimated += 1
            continue
        stored_s, slurm_s = stored_s + by_store_s, slurm_s + by_slurm_s
        if abs(by_store_s - by_slurm_s) > slack_s:
            each = " + ".join(f"{gpus}·{lasted_s:.0f}" for gpus, lasted_s in own)
            wrong.append(
                f"job {job_id} ({name}): {by_store_s:.0f} GPU seconds, by sacct {by_slurm_s:.0f} ({each})"
            )
    return (
        wrong,
        f"{stored_s:.0f} GPU seconds in the store, {slurm_s:.0f} by sacct; {estimated} jobs estimated",
    )


def _ended_runs(sacct: CommandRunner) -> list[tuple[str, str, int, float]]:
    """Return (job, name, GPUs, seconds) of each run; nothing while one has not ended."""
    answer = sacct.run(
        "sacct", "-D", "-X", "-P", "-n", "--allusers", "--starttime=2020-01-01",
        "--format=JobIDRaw,End,ElapsedRaw,AllocTRES,JobName",
    )  # fmt: skip
    found = []
    for line in answer.stdout.splitlines():
        number, end, elapsed, tres, name = line.split("|", 4)
        if end == "Unknown":
            return []
        gpus = re.search(r"gres/gpu=(\d+)", tres)
        found.append((number, name, int(gpus[1]) if gpus else 0, float(elapsed)))
    return found
