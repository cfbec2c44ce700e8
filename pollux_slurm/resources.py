"""Find the files that are installed with the code: `templates/` and `sql/`.

In a wheel they are inside the package, in a checkout (and an editable install) at the top of the repository.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE_DIR = Path(__file__).resolve().parent


def resource_dir(name: str) -> Path:
    """Return the folder `name`, "templates" or "sql", of this installation."""
    for candidate in (_PACKAGE_DIR / name, _PACKAGE_DIR.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"this installation of pollux_slurm lacks its {name}/ folder: reinstall it")
