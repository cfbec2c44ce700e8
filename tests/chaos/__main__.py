"""The long run: `python -m tests.chaos --faults 200 --seed 1`. Exits with 0 when nothing is wrong."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pollux_slurm.daemon.observe.returned_nodes import SETTLING
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup
from tests.chaos import verdict
from tests.chaos.run import Outcome, Run
from tests.chaos.site import running_site
from tests.slurm.accounting_site import accounting_if_installed
from tests.store.postgres import PostgresServer, running_postgres

NODES = NodeGroup(num_nodes=3, gpus_per_node=3)
# A node that returns takes nothing new at first; then moves go on among all nodes for a while.
_WHOLE_S = SETTLING.total_seconds() + 40.0
# Some points are reached only while a running job is moved.
_TRIES = 15


def main() -> int:
    """Run, print the counts, and return whether nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule (default: %(default)s)")
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--epochs", type=int, default=20, help="of each job (default: %(default)s)")
    parser.add_argument("--pass-s", default="0.005,0.003", help="emulated device time (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=4.0, help="most seconds between faults")
    parser.add_argument("--hours", type=float, default=3.0, help="after which the run gives up")
    parser.add_argument("--keep", action="store_true", help="keep logs, checkpoints and store in any case")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything that was started is stopped
    folder = Path(tempfile.mkdtemp(prefix="pollux-chaos-", dir="/tmp"))
    folder.chmod(0o755)
    print(
        f"seed {options.seed}, {options.faults} faults, {options.store}; everything is in {folder}",
        flush=True,
    )
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_postgres()) if options.store == "postgresql" else None
        outcome = chaos(folder, options, server)
    for line in verdict.lines(outcome):
        print(line, flush=True)
    if not outcome.wrong and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if outcome.wrong else 0


def chaos(folder: Path, options: argparse.Namespace, server: PostgresServer | None) -> Outcome:
    with (
        sandbox_in(folder / "slurm") as sandbox,
        accounting_if_installed(sandbox) as sacct,
        # Its slurmctld is another one by now.
        running_site(
            folder,
            Sandbox.find(folder / "slurm"),
            epochs=options.epochs,
            pass_s=options.pass_s,
            server=server,
        ) as site,
    ):
        run = Run(
            site=site,
            num_faults=options.faults,
            seed=options.seed,
            pause_s=(0.5, options.pause),
            deadline_s=options.hours * 3600,
            log=lambda text: print(text, flush=True),
            tries=_TRIES,
            whole_s=_WHOLE_S,
        )
        run.inject_all()
        run.let_finish(timeout_s=900)
        verdict.judge(site, run.outcome, sacct)
        if run.outcome.wrong and server is None:  # the small disk ends with the site
            for file in (folder / "disk").iterdir():
                shutil.copy(file, folder)
        return run.outcome


@contextlib.contextmanager
def sandbox_in(folder: Path) -> Iterator[Sandbox]:
    sandbox = Sandbox.up(folder, (NODES,), environ=os.environ, kill_wait_s=5, timeout_s=300)
    try:
        yield sandbox
    finally:
        sandbox.down()


if __name__ == "__main__":
    sys.exit(main())
