"""Find the files that ship beside the code: `templates/` and `sql/`.

In a wheel they lie inside the package; in a source checkout (and an editable install) they stand at the top
level of the repository.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE_DIR = Path(__file__).resolve().parent


def resource_dir(name: str) -> Path:
    """Return the folder `name` ("templates" or "sql"), wherever this installation keeps it."""
    for candidate in (_PACKAGE_DIR / name, _PACKAGE_DIR.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"this installation of pollux_slurm lacks its {name}/ folder: reinstall it")
