"""Find the files that are installed with the code: `templates/` and `sql/`. Tell when the code is replaced.

In a wheel they are inside the package, in a checkout (and an editable install) at the top of the repository.
"""

from __future__ import annotations

import os
from pathlib import Path

CODE_REPLACED = (
    "pollux_slurm was upgraded while the job ran; the job runs the new release from its next start on"
)
"""Why a job is not moved in place once `code_on_disk` has another answer than at its start."""

_PACKAGE_DIR = Path(__file__).resolve().parent


def resource_dir(name: str) -> Path:
    """Return the folder `name`, "templates" or "sql", of this installation."""
    for candidate in (_PACKAGE_DIR / name, _PACKAGE_DIR.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"this installation of pollux_slurm lacks its {name}/ folder: reinstall it")


def code_on_disk() -> tuple[int, int]:
    """Return the number of this installation's Python files, and the time of the newest, in ns.

    Another answer than at the process's start: an upgrade has replaced what this process runs, and what it
    starts runs other code.
    """
    num_files, newest_ns = 0, 0
    for folder, _, names in os.walk(_PACKAGE_DIR):
        for name in names:
            if name.endswith(".py"):
                try:
                    changed_ns = os.stat(os.path.join(folder, name)).st_mtime_ns  # noqa: PTH116, PTH118 (speed)
                except OSError:  # it is being replaced
                    continue
                num_files, newest_ns = num_files + 1, max(newest_ns, changed_ns)
    return num_files, newest_ns
