"""Find the trainings on this machine that `pollux run --in-place` has started."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from pollux_slurm.agent.launch.rendezvous import RUN_FOLDER_PREFIX
from pollux_slurm.agent.membership.folder import MembershipFolder
from pollux_slurm.errors import UsageError


def find_local_run(pid: int | None) -> MembershipFolder:
    """Return the membership of this user's only run, or of the one with process id `pid`.

    Raises `UsageError` where there is none, or more than one to choose from.
    """
    found: dict[int, tuple[MembershipFolder, str]] = {}
    for path in Path(tempfile.gettempdir()).glob(f"{RUN_FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid != os.getuid():
                continue
            folder = MembershipFolder(path)
            known = folder.run()
            if known is not None and Path(f"/proc/{known[0]}").exists():
                found[known[0]] = folder, known[1]
    if pid is not None and pid in found:
        return found[pid][0]
    if pid is None and len(found) == 1:
        return next(iter(found.values()))[0]
    listed = "; ".join(f"--run {number} ({command})" for number, (_, command) in sorted(found.items()))
    if not found:
        raise UsageError(
            "no training on this machine can be resized: start one with `pollux run --in-place -- python "
            "train.py`"
        )
    raise UsageError(f"which run? {listed}" if pid is None else f"no such run; there is {listed}")
