"""A hostile site for some minutes: `python -m tests.site --minutes 30`. Exits with 0 if all holds."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from pollux_slurm.sandbox.cluster import Sandbox
from tests.conftest import running_sandbox
from tests.site.hostile import GROUPS, hostile_site
from tests.site.run import Run
from tests.slurm.accounting_site import accounting_if_installed


def main() -> int:
    """Run, print the table, and return whether all holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep logs and store in any case")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything that was started is stopped
    folder = Path(tempfile.mkdtemp(prefix="pollux-site-", dir="/tmp"))
    folder.chmod(0o755)
    print(f"seed {options.seed}, {options.minutes:g} minutes; everything is in {folder}", flush=True)
    with (
        running_sandbox(*GROUPS) as sandbox,
        accounting_if_installed(sandbox) as sacct,
        # Its slurmctld is another one by now.
        hostile_site(folder, Sandbox.find(sandbox.layout.dir), sacct, seed=options.seed) as site,
    ):
        run = Run(site, options.minutes, options.seed, log=lambda text: print(text, flush=True))
        try:
            run.go()
            findings, notes = run.verdict(sacct), run.notes()
        finally:
            shutil.copy(sandbox.layout.log_dir / "slurmctld.log", folder)
    print("\n".join(notes))
    for finding in findings:
        print(f"{'WRONG' if finding.wrong else 'holds':5}  {len(finding.wrong):3d}  {finding.what}")
        for word in finding.wrong:
            print(f"            {word}")
    is_wrong = any(finding.wrong for finding in findings)
    if not is_wrong and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
