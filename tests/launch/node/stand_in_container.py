"""A command that stands for `apptainer exec image.sif` where Apptainer is not installed."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest

# A user namespace is needed by everybody but root. The shell waits for `unshare`, and that for its child.
_UNSHARE = "unshare --mount --pid --fork --mount-proc" + ("" if os.geteuid() == 0 else " --map-root-user")


def write_container(folder: Path, *, before: str = ":") -> Path:
    """Write the command `container` into `folder`; `before` is run in the new namespaces first."""
    file, inside = folder / "container", folder / "container.inside"
    file.write_text(f'#!/bin/bash\n{_UNSHARE} "$0.inside" "$@"\n')
    inside.write_text(f'#!/bin/sh\n{before}\nexec "$@"\n')
    file.chmod(0o755)
    inside.chmod(0o755)
    return file


@functools.cache
def _has_namespaces() -> bool:
    return subprocess.run([*_UNSHARE.split(), "true"], capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not _has_namespaces(), reason="this user may make no namespaces (unshare)"
)
