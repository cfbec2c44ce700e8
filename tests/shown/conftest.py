"""The seeded store on each backend, read by commands, pages and `top` at one time."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.model import ClusterSnapshot
from pollux_slurm.store.access import opening
from tests.shown.store import NOW, fill, snapshot
from tests.store.conftest import postgres, postgres_store, sqlite_store, wipe

__all__ = ["postgres", "postgres_store", "sqlite_store"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def seeded(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return the name of a backend and the URL of the seeded store there."""
    is_file = request.param == "sqlite"
    store = request.getfixturevalue("sqlite_store" if is_file else "postgres_store")
    wipe(store)
    fill(store)
    if is_file:
        return request.param, request.getfixturevalue("shared_store_url")
    return request.param, request.getfixturevalue("postgres").url("store")


class _Slurm:
    def snapshot(self) -> ClusterSnapshot:
        return snapshot()


@pytest.fixture(scope="module", autouse=True)
def _one_engine_for_all() -> Iterator[None]:
    """Let each command open the store with the same engine, which compiles a statement once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opening, "make_engine", functools.cache(opening.make_engine))
        yield


@pytest.fixture(autouse=True)
def _at_one_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let commands see the seeded Slurm at `NOW`, and print as a terminal does that knows no colours."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("pollux_slurm.cli.shared.clock.now", lambda: NOW)
    monkeypatch.setattr("pollux_slurm.slurm.connect", lambda *_: _Slurm())
    settings = {
        "POLLUX_SLURM_BIN_DIR": str(tmp_path),
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    for name, value in {**settings, "TERM": "dumb", "FORCE_COLOR": "1", "LINES": "50"}.items():
        monkeypatch.setenv(name, value)
