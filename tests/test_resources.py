"""What tells that an upgrade has replaced the code of a running process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pollux_slurm import resources


def test_that_code_that_is_changed_added_or_removed_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_PACKAGE_DIR", tmp_path)
    inner = tmp_path / "store"
    inner.mkdir()
    for name in ("__init__.py", "store/base.py", "store/py.typed"):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, ns=(7, 7))
    assert resources.code_on_disk() == (2, 7)
    # Python itself writes such files.
    (inner / "base.cpython-311.pyc").write_text("")
    assert resources.code_on_disk() == (2, 7)
    os.utime(inner / "base.py", ns=(9, 9))
    assert resources.code_on_disk() == (2, 9)
    os.utime(tmp_path / "__init__.py", ns=(11, 11))
    assert resources.code_on_disk() == (2, 11)
    (tmp_path / "__init__.py").unlink()
    assert resources.code_on_disk() == (1, 9)
