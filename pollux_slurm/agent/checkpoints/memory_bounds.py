"""Local batches that ran out of memory, remembered in the job's checkpoint directory over restarts.

A replica that runs out of memory cannot go on: the others wait for its gradients. So it leaves a file::

    memory/000003-000001.json   rank 1 of run 3: of which loader, how many examples, on how large a device

and ends. `pollux run` sees the new file and starts the processes again, with smaller passes.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pollux_slurm.errors import CheckpointError

_LOG = logging.getLogger(__name__)
_FOLDER = "memory"
# Each start halves a local batch at least.
_MOST_STARTS = 24
# How the processes end that were told to stop; whatever they left behind, nobody wants them again.
STOPPED_EXIT_CODES = (130, 143)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """A local batch of `loader` that did not fit, and the most examples to try from now on.

    `device_bytes` is the memory of the device where it did not (0: the host's). Smaller ones are bound, too.
    """

    loader: str
    failed: int
    largest: int
    device_bytes: int


def record_bound(directory: Path, bound: MemoryBound, *, run_number: int, rank: int) -> None:
    """Leave a bound for the job's next runs. Raises `CheckpointError` when the disk does not take it."""
    folder = directory / _FOLDER
    path = folder / f"{run_number:06d}-{rank:06d}.json"
    temporary = path.with_suffix(".tmp")
    try:
        folder.mkdir(exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(asdict(bound), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path}: the memory bound was not written: {error}") from error


def read_bounds(directory: Path) -> tuple[MemoryBound, ...]:
    """Return what the job's runs have left; a file with something else is passed over, with a warning."""
    bounds = []
    for path in sorted((directory / _FOLDER).glob("*.json")):
        try:
            bound = MemoryBound(**json.loads(path.read_text(encoding="utf-8")))
            numbers = (bound.failed, bound.largest, bound.device_bytes)
            if not isinstance(bound.loader, str) or any(type(number) is not int for number in numbers):
                raise ValueError("fields of another kind")
            if bound.largest < 1 or bound.device_bytes < 0:
                raise ValueError("numbers out of range")
        except (OSError, ValueError, TypeError) as error:
            _LOG.warning("%s: not a memory bound: %s", path, error)
            continue
        bounds.append(bound)
    return tuple(bounds)


def num_bounds(directory: Path) -> int:
    """Return how many files runs have left."""
    return len(list((directory / _FOLDER).glob("*.json")))


def rerun_with_smaller_batches(
    run: Callable[[], int], directory: Path | None, *, warn: Callable[[str], None]
) -> int:
    """Call `run` again as long as it fails and leaves another bound. Returns its last exit code."""
    if directory is None:
        return run()
    known = num_bounds(directory)
    for _ in range(_MOST_STARTS):
        code = run()
        now = num_bounds(directory)
        if code == 0 or code in STOPPED_EXIT_CODES or now <= known:
            return code
        known = now
        warn("a local batch did not fit into memory: starting again with smaller passes")
    return run()
