"""The files of micro-batches that ran out of memory; `pollux run` starts the processes again after a new one.

A replica that runs out of memory cannot go on, since the others wait for its gradients. It writes a file::

    memory/000003-000001.json   rank 1 of run 3: the loader, the number of examples, the device's memory

and exits. `pollux run` finds the new file and starts the processes again, with smaller micro-batches.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pollux_slurm.agent.exit_codes import STOPPED_EXIT_CODES
from pollux_slurm.errors import CheckpointError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.system.private_files import read_data, write_data

_LOG = logging.getLogger(__name__)
_FOLDER = "memory"
# Each start at least halves a micro-batch.
_MAX_STARTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """A micro-batch of `loader` that did not fit into memory, and the largest size to try from now on.

    `failed` and `largest` are in examples; `failed` is 0 where nothing ran out of memory in this job, but in
    others of its kind. `device_bytes` is the memory of the device (0: the host); the
    bound also holds on smaller devices.
    """

    loader: str
    failed: int
    largest: int
    device_bytes: int

    @property
    def is_own(self) -> bool:
        """Whether a local batch ran out of memory in this job."""
        return self.failed > 0


def record_bound(directory: Path, bound: MemoryBound, *, run_number: int, rank: int) -> None:
    """Write a bound for the job's next runs. Raises `CheckpointError` when writing fails."""
    path = directory / _FOLDER / f"{run_number:06d}-{rank:06d}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        write_data(path, json.dumps(asdict(bound)).encode())
    except OSError as error:
        raise CheckpointError(f"{path}: the memory bound was not written: {error}") from error


def read_bounds(directory: Path) -> tuple[MemoryBound, ...]:
    """Return the bounds that the job's runs have written; a malformed file is skipped with a warning."""
    bounds = []
    for path in sorted((directory / _FOLDER).glob("*.json")):
        try:
            bound = MemoryBound(**parse_json(read_data(path)))
            numbers = (bound.failed, bound.largest, bound.device_bytes)
            if not isinstance(bound.loader, str) or any(type(number) is not int for number in numbers):
                raise ValueError("fields of a wrong type")
            if bound.largest < 1 or bound.device_bytes < 0:
                raise ValueError("numbers out of range")
        except (OSError, ValueError, TypeError) as error:
            _LOG.warning("%s: not a memory bound: %s", path, error)
            continue
        bounds.append(bound)
    return tuple(bounds)


def num_bounds(directory: Path) -> int:
    """Return how many bounds the job's runs have written."""
    return len(list((directory / _FOLDER).glob("*.json")))


def rerun_with_smaller_batches(
    run: Callable[[], int], directory: Path | None, *, warn: Callable[[str], None]
) -> int:
    """Call `run` again as long as it fails and writes a new bound. Returns the last exit code.

    Processes that were asked to stop are not started again.
    """
    if directory is None:
        return run()
    known = num_bounds(directory)
    for _ in range(_MAX_STARTS):
        code = run()
        now = num_bounds(directory)
        if code == 0 or code in STOPPED_EXIT_CODES or now <= known:
            return code
        known = now
        warn("a micro-batch did not fit into memory: starting again with smaller micro-batches")
    return run()
