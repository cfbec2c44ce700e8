"""`pollux pause`, `resume` and `drain`: change one job, by an admin or its owner."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.completion import complete_active_jobs
from pollux_slurm.cli.shared.duration_options import seconds
from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    StoreOption,
    print_line,
    print_note,
    settings,
)
from pollux_slurm.errors import NotYetError, PolluxError

if TYPE_CHECKING:
    from pollux_slurm.store.contract.interface import Reallocation, Store

JobArgument = Annotated[str, typer.Argument(help="The Slurm job id.", autocompletion=complete_active_jobs)]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait",
        parser=seconds(),
        metavar="TIME",
        help="How long to wait for the end of a move and until the daemon has done it: seconds, or 90s, 5m; "
        "0: do not wait.",
    ),
]
_POLL_S = 0.5


def pause(
    job: JobArgument, wait: WaitOption = 0.0, config_file: ConfigOption = None, store_url: StoreOption = None
) -> None:
    """Take a running job's GPUs after a checkpoint; it waits in the queue until `pollux resume`.

    Example: pollux pause 1234 --wait 300
    """
    from pollux_slurm.daemon.enact import admin_orders

    _order(
        lambda store: admin_orders.pause(store, job, by=who(), drain=False, at=clock.now()),
        wait,
        settings(config_file, store_url).require_store_url(),
        done=f"job {job}: its checkpoint is requested; it then waits until: pollux resume {job}",
    )


def drain(
    job: JobArgument, wait: WaitOption = 0.0, config_file: ConfigOption = None, store_url: StoreOption = None
) -> None:
    """Take a running job's GPUs after a checkpoint, and hold it in the queue, as `scontrol hold` does.

    Example: pollux drain 1234 --wait 300
    """
    from pollux_slurm.daemon.enact import admin_orders

    _order(
        lambda store: admin_orders.pause(store, job, by=who(), drain=True, at=clock.now()),
        wait,
        settings(config_file, store_url).require_store_url(),
        done=f"job {job}: its checkpoint is requested; it is then held until: pollux resume {job}",
    )


def resume(
    job: JobArgument, wait: WaitOption = 0.0, config_file: ConfigOption = None, store_url: StoreOption = None
) -> None:
    """Let a paused or drained job run again.

    Example: pollux resume 1234
    """
    from pollux_slurm.daemon.enact import admin_orders

    _order(
        lambda store: admin_orders.resume(store, job, by=who(), at=clock.now()),
        wait,
        settings(config_file, store_url).require_store_url(),
        done=f"job {job}: it is started again",
    )


def _order(give: Callable[[Store], Reallocation], wait_s: float, url: str, *, done: str) -> None:
    from pollux_slurm.now.daemon_text import daemon_absence_text
    from pollux_slurm.now.jobs import jobs_held_by_journal
    from pollux_slurm.store import open_store

    store = open_store(url)
    try:
        held = jobs_held_by_journal(store.journal.open_reallocations())
        missing = daemon_absence_text(store.lease.daemon_status(), clock.now(), held)
        if missing is not None:
            print_note(f"pollux: no daemon carries this out now: {missing}")
        deadline = time.monotonic() + wait_s
        ordered = _given(give, store, deadline)
        print_line(
            f"{done} (the daemon does so in its next round; see: pollux status {ordered.slurm_job_id})"
        )
        while wait_s:
            now = next(r for r in store.journal.reallocations(ordered.slurm_job_id) if r.id == ordered.id)
            if now.step.is_end:
                break
            if time.monotonic() > deadline:
                raise PolluxError(
                    f"job {now.slurm_job_id}: not done in {wait_s:g} s, its step is {now.step.value}; does "
                    "the daemon run, and not in shadow mode?"
                )
            time.sleep(_POLL_S)
        else:
            return
        if now.step.value != "confirmed":
            raise PolluxError(f"job {now.slurm_job_id}: {now.step.value}: {now.reason}")
        print_line(f"job {now.slurm_job_id}: done")
    finally:
        store.close()


def _given(give: Callable[[Store], Reallocation], store: Store, deadline: float) -> Reallocation:
    """Give an order. While the job is being moved, that is tried again until the deadline."""
    is_said = False
    while True:
        try:
            return give(store)
        except NotYetError as error:
            if time.monotonic() > deadline:
                raise
            if not is_said:
                print_note(f"pollux: {error}; waiting for that")
            is_said = True
        time.sleep(_POLL_S)


def who() -> str:
    """Return the name of the user who gives an order, for the journal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return f"user {os.geteuid()}"
