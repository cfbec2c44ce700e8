"""One replica in the test's own process: a fit that is stopped by SIGTERM, and goes on in a new session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lightning import scripts
from tests.lightning.scripts import pl
from tests.torch.single_replica import joined


def fit_here(directory: Path | None = None, **options: Any) -> dict[str, Any]:
    """Fit to the end, from the checkpoint in `directory` if there is one."""
    with joined(directory, strict=True):
        return scripts.fit(None if directory is None else str(directory), **options)


def stopped_here(directory: Path, **options: Any) -> None:
    """Fit until SIGTERM comes; the script ends with its checkpoint and exit code 143."""
    with joined(directory, strict=True), pytest.raises(SystemExit) as stop:
        scripts.fit(str(directory), **options)
    assert stop.value.code == 143


__all__ = ["fit_here", "pl", "stopped_here"]
