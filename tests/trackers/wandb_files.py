"""Read what a W&B run has written offline: a log in LevelDB's format of protocol buffers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 32768
_HEADER_BYTES = 7


@dataclass
class OfflineRun:
    """One offline directory: its run's id, rows of history, and summary."""

    run_id: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


def offline_runs(folder: Path) -> list[OfflineRun]:
    """Return the runs of a folder in the order of their start."""
    return [_read(path) for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb"))]


def _read(path: Path) -> OfflineRun:
    from wandb.proto.wandb_internal_pb2 import Record

    run = OfflineRun()
    for content in _records(path.read_bytes()):
        record = Record.FromString(content)
        if record.HasField("run"):
            run.run_id = record.run.run_id
        elif record.HasField("history"):
            run.rows.append(_items(record.history.item))
        elif record.HasField("summary"):
            run.summary |= _items(record.summary.update)
    return run


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(data: bytes) -> Iterator[bytes]:
    assert data[:4] == b":W&B"
    at, parts = _HEADER_BYTES, b""
    while at + _HEADER_BYTES <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + _HEADER_BYTES : at + _HEADER_BYTES + length]
        at += _HEADER_BYTES + length
        # 1 is a whole record, 4 the last part of one.
        if kind in (1, 4):
            yield parts
            parts = b""
