"""Run the mixture of jobs and compare the accounts, without an accounting database or with one."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import datetime

from pollux_slurm.model import AccountedRun
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.slurm.commands.accounting import Accounting
from pollux_slurm.store.contract.interface import Store
from tests.books.compare import Line, compared, runs_of_log, runs_of_sacct, states_of
from tests.books.mixture import Mixture
from tests.slurm.accounting_site import accounting_of, sacctmgr
from tests.store.schema.test_views import rows_of
from tests.waiting import wait_until

Log = Callable[[str], None]
WANTED = "SELECT slurm_job_id, gpu_hours, estimated, requeues, state FROM job_goodput ORDER BY job_id"


def by_log(store: Store, sandbox: Sandbox, *, limits: bool, log: Log) -> list[Line]:
    """Compare with slurmctld's log and its records: the site has no slurmdbd."""
    mixture = Mixture(store, sandbox, log=log)
    mixture.run_all(limits=limits)
    lines = compared(mixture, rows_of(store, WANTED), runs_of_log(sandbox.layout.log_dir / "slurmctld.log"))
    wrong = {
        job_id: f"{store.jobs.get(job_id).state.value}, by Slurm {state.value}"
        for job_id, state in states_of(mixture).items()
        if store.jobs.get(job_id).state is not state
    }
    assert not wrong, wrong
    return lines


def by_sacct(store: Store, sandbox: Sandbox, *, limits: bool, log: Log) -> list[Line]:
    """Compare with sacct: the site has a slurmdbd, on a MariaDB of its own."""
    with accounting_of(sandbox) as runner:
        sacctmgr(runner, "add", "account", "lab")
        sacctmgr(runner, "add", "user", getpass.getuser(), "account=lab")
        asked = Accounting(runner)

        def past_runs(job_ids: list[str], since: datetime) -> tuple[AccountedRun, ...]:
            return asked.runs(job_ids, since=since)

        mixture = Mixture(store, sandbox, past_runs=past_runs, options=("--account=lab",), log=log)  # type: ignore[arg-type]
        mixture.run_all(limits=limits)
        mixture.vanish()

        def is_settled() -> bool:
            mixture.round()
            return not any(row["estimated"] for row in rows_of(store, WANTED))

        wait_until(is_settled, timeout_s=300, what="slurmdbd to have every run", every_s=1.0)
        return compared(mixture, rows_of(store, WANTED), runs_of_sacct(runner))
