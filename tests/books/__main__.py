"""`python -m tests.books`: the mixture, with and without slurmdbd. Exits with 0 when both accounts agree."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.store import open_store
from tests.books.check import by_log, by_sacct
from tests.books.compare import Line
from tests.conftest import running_sandbox
from tests.slurm.accounting_site import missing_programs


def main() -> int:
    """Run both, print both accounts job by job, and return whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="without time limits, which take Slurm 90 s")
    options = parser.parse_args()
    wrong = 0
    kinds = [("slurmctld's log", by_log), ("sacct", by_sacct)]
    if missing := missing_programs():
        print(f"without sacct: no {', '.join(missing)} here (apt install slurmdbd mariadb-server-core)")
        kinds.pop()
    for name, check in kinds:
        folder = Path(tempfile.mkdtemp(prefix="pollux-books-", dir="/tmp"))
        store = open_store(f"sqlite:///{folder}/pollux.db", create=True)
        try:
            with running_sandbox(NodeGroup(num_nodes=3)) as sandbox:
                lines = check(
                    store, sandbox, limits=not options.short, log=lambda text: print(text, flush=True)
                )
        finally:
            store.close()
            shutil.rmtree(folder, ignore_errors=True)
        wrong += sum(bool(line.differences) for line in lines)
        show(name, lines)
    print("the books agree" if not wrong else f"the books differ in {wrong} jobs")
    return 1 if wrong else 0


def show(name: str, lines: list[Line]) -> None:
    """Print a table of the store's and Slurm's figures."""
    print(f"\n{'job':>4} {'stored':>8} {'Slurm':>8}  GPU seconds by {name}")
    for line in lines:
        mark = "estimated" if line.estimated else ""
        odd = "; ".join(line.differences)
        print(
            f"{line.played.job_id:>4} {line.stored_gpu_s:8.0f} {line.slurm_gpu_s:8.0f}  "
            f"{line.played.what}  {mark}{odd and f'  WRONG: {odd}'}"
        )
    stored, slurm = sum(line.stored_gpu_s for line in lines), sum(line.slurm_gpu_s for line in lines)
    print(f"{'all':>4} {stored:8.0f} {slurm:8.0f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
