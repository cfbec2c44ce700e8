"""The lineage of a job's checkpoints: which one a run resumes from, which are kept, which deleted. No locks.

A job's runs share one directory::

    runs/000003.json                       the claim of run 3: what it resumed from, host, process id
    checkpoints/000003-000012-<sha256>.pt  the twelfth checkpoint of run 3; its name contains its checksum

A run first *chooses* the checkpoint that it resumes from. Then it *claims* the next run number: it links a
complete file to a name that must not exist yet, which exactly one process can do. The claim records the
choice. It follows:

- Run n chooses among the checkpoints of run n − 1, else it takes what run n − 1 resumed from, and so on back.
- What a leftover process of run n − 1 writes after claim n exists is ignored: run n has chosen, and run n + 1
  looks at the files of run n or at its recorded choice. This needs neither a lock nor a clock.

`write` also looks for a newer claim, before and after writing, so that a leftover process stops early. The
rule above does not depend on that: it holds where a shared file system shows the claim late.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from pollux_slurm.agent.checkpoints.disk_space import has_room, is_disk_full
from pollux_slurm.errors import CheckpointError, DamagedCheckpointError, DiskFullError, SupersededRunError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.system.private_files import data_draft, read_data, write_data

_LOG = logging.getLogger(__name__)
_CLAIM = re.compile(r"([0-9]{6,20})\.json")
_FILE = re.compile(r"([0-9]{6,20})-([0-9]{6,20})-([0-9a-f]{64})\.pt")
_CHUNK_BYTES = 1 << 20
_ELSEWHERE = "kept-elsewhere-"
_MAX_CLAIM_ATTEMPTS = 100


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CheckpointId:
    """One checkpoint file: the run that wrote it, its number within that run, and its SHA-256."""

    run_number: int
    sequence: int
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.run_number:06d}-{self.sequence:06d}-{self.sha256}.pt"

    @classmethod
    def parse(cls, file_name: str) -> CheckpointId | None:
        """Return the checkpoint that a file name denotes; None for other files."""
        match = _FILE.fullmatch(file_name)
        if match is None:
            return None
        return cls(run_number=int(match[1]), sequence=int(match[2]), sha256=match[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClaim:
    """A run's claim: its number and the checkpoint it resumes from (None: from the beginning)."""

    run_number: int
    resumed_from: CheckpointId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCheckpoint:
    """A checkpoint that is completely on disk. `has_room_for_next`: another one of its size would fit."""

    id: CheckpointId
    path: Path
    size_bytes: int
    has_room_for_next: bool


class Lineage:
    """One run's view of its job's checkpoint directory. Made by `claim_run`, in one process of the run."""

    def __init__(self, directory: Path, claim: RunClaim, *, num_kept: int) -> None:
        self._runs, self._files = directory / "runs", directory / "checkpoints"
        self._num_kept = num_kept
        self._sequence = 0
        self._last: CheckpointId | None = None
        self.claim = claim

    @property
    def resume_path(self) -> Path | None:
        """The file that this run resumes from; None if it starts from the beginning."""
        source = self.claim.resumed_from
        return None if source is None else self._files / source.file_name

    def check_current(self) -> None:
        """Raise `SupersededRunError` when a newer run of the job has claimed these checkpoints."""
        newest = max(_claimed_runs(self._runs), default=-1)
        if newest > self.claim.run_number:
            raise SupersededRunError(
                f"{self._runs.parent}: run {newest + 1} of this job has taken over from run "
                f"{self.claim.run_number + 1}, which stops without writing"
            )

    def write(self, serialize: Callable[[BinaryIO], None]) -> WrittenCheckpoint:
        """Write a checkpoint: to a temporary file, synced, renamed into place, the directory synced.

        `serialize` writes the content to the file that it is passed. On a full disk, all but the newest
        checkpoint are deleted for it. Raises `SupersededRunError`, and `CheckpointError` when writing fails
        (`DiskFullError` on a full disk); then the newest checkpoint is unchanged.
        """
        self.check_current()
        self._sequence += 1
        previous = self._last or self.claim.resumed_from
        try:
            identity, size_bytes = self._write_file(serialize)
        except DiskFullError:
            if previous is None or not self._prune(keep={previous}):
                raise
            identity, size_bytes = self._write_file(serialize)
        self._last = identity
        kept = self._kept(identity, previous)
        self._prune(keep=kept)
        # What the next one would be written in place of.
        spare_bytes = sum(_size_bytes(self._files, known) for known in kept - {identity})
        return WrittenCheckpoint(
            id=identity,
            path=self._files / identity.file_name,
            size_bytes=size_bytes,
            has_room_for_next=has_room(self._files, size_bytes - spare_bytes),
        )

    def _write_file(self, serialize: Callable[[BinaryIO], None]) -> tuple[CheckpointId, int]:
        """Write one file as `write` says; return it, and its size in bytes."""
        hashing: _HashingWriter | None = None
        try:
            with data_draft(self._files, f".{self.claim.run_number:06d}-{self._sequence:06d}") as draft:
                hashing = _HashingWriter(draft.file)
                serialize(hashing)  # type: ignore[arg-type]
                draft.sync()
                size_bytes = draft.file.tell()
                self.check_current()
                identity = CheckpointId(
                    run_number=self.claim.run_number, sequence=self._sequence, sha256=hashing.hexdigest()
                )
                draft.keep_as(identity.file_name)
        except (OSError, RuntimeError) as error:
            # torch.save raises a RuntimeError of its archive writer where a write has failed.
            reason = error if hashing is None else hashing.error or error
            if is_disk_full(reason):
                raise DiskFullError(
                    f"{self._files}: the checkpoint was not written, because the disk or your quota is full: "
                    "free some space there, or submit with --checkpoint-dir on another disk"
                ) from error
            raise CheckpointError(f"{self._files}: the checkpoint was not written: {reason}") from error
        return identity, size_bytes

    def _kept(self, newest: CheckpointId, previous: CheckpointId | None) -> set[CheckpointId]:
        """Return the newest checkpoints of the lineage, as many as are kept."""
        if previous is None:
            return {newest}
        older: list[CheckpointId] = []
        with contextlib.suppress(OSError):
            older = sorted((one for one in _checkpoints(self._files) if one < previous), reverse=True)
        return {newest, *[previous, *older][: self._num_kept - 1]}

    def _prune(self, keep: set[CheckpointId]) -> int:
        """Delete checkpoints of this and earlier runs except `keep`, and temporary files of earlier runs.

        Returns how many were deleted.
        """
        num_deleted = 0
        try:
            self.check_current()
        except SupersededRunError:
            return num_deleted
        with contextlib.suppress(OSError):
            for path in self._files.iterdir():
                known = CheckpointId.parse(path.name)
                leftover = re.match(r"\.(\d{6,})-.*\.tmp$", path.name)
                old = known is not None and known not in keep and known.run_number <= self.claim.run_number
                if old or (leftover is not None and int(leftover[1]) < self.claim.run_number):
                    path.unlink(missing_ok=True)
                    num_deleted += 1
        return num_deleted


def claim_run(
    directory: Path,
    *,
    restart_count: int,
    host: str,
    pid: int,
    at: datetime,
    num_kept: int = 2,
    goes_on_from: int | None = None,
) -> Lineage:
    """Choose the checkpoint to resume from, then claim the next run number with that choice.

    `num_kept` is how many checkpoints the run keeps. With `goes_on_from`, it goes on from that run in memory.
    It reads no checkpoint, and verifies none: who resumes from one later does. Raises `SupersededRunError`
    where that run is not the newest: another start of the job has taken over from it.
    Raises `DamagedCheckpointError` when all checkpoints are damaged, `CheckpointError` when the directory
    cannot be used.
    """
    runs, files = directory / "runs", directory / "checkpoints"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        files.mkdir(exist_ok=True)
        for _ in range(_MAX_CLAIM_ATTEMPTS):
            previous = max(_claimed_runs(runs), default=None)
            if goes_on_from is not None and previous != goes_on_from:
                number = 0 if previous is None else previous + 1
                raise SupersededRunError(
                    f"{directory}: run {number} of this job has taken over from run {goes_on_from + 1}, "
                    "which stops"
                )
            chosen = _choose(directory, previous, verifies=goes_on_from is None)
            claim = RunClaim(run_number=0 if previous is None else previous + 1, resumed_from=chosen)
            content = {
                "run_number": claim.run_number,
                "resumed_from": None if chosen is None else chosen.file_name,
                "restart_count": restart_count,
                "host": host,
                "pid": pid,
                "claimed_at": at.isoformat(),
            }
            with contextlib.suppress(FileExistsError):
                file = runs / f"{claim.run_number:06d}.json"
                write_data(file, json.dumps(content).encode() + b"\n", is_new=True)
                return Lineage(directory, claim, num_kept=num_kept)
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be used for checkpoints: {error}") from error
    raise CheckpointError(f"{directory}: other runs of this job keep claiming it; stop them first")


def newest_size_bytes(directory: Path) -> int:
    """Return the size of the newest checkpoint in `directory`; 0 where there is none."""
    files = directory / "checkpoints"
    with contextlib.suppress(OSError):
        newest = max(_checkpoints(files), default=None)
        return 0 if newest is None else _size_bytes(files, newest)
    return 0


def newest_checkpoint(directory: Path) -> Path | None:
    """Return the file that the job's next run goes on from, by its name; None where there is none."""
    with contextlib.suppress(OSError, CheckpointError):
        chosen = _choose(directory, newest_run(directory), verifies=False)
        return None if chosen is None else directory / "checkpoints" / chosen.file_name
    return None


def newest_run(directory: Path) -> int | None:
    """Return the number of the job's newest run that has claimed `directory`; None where there is none."""
    with contextlib.suppress(OSError):
        return max(_claimed_runs(directory / "runs"), default=None)
    return None


def num_runs(directory: Path) -> int:
    """Return how many runs have claimed `directory`, or recorded there that they use another one."""
    with contextlib.suppress(OSError):
        return len(list(_claimed_runs(directory / "runs"))) + len(list(directory.glob(f"{_ELSEWHERE}*")))
    return len(list(directory.glob(f"{_ELSEWHERE}*")))


def record_checkpoints_elsewhere(directory: Path, *, restart_count: int) -> None:
    """Record in the directory that the job was given that this run uses another one."""
    with contextlib.suppress(OSError):
        write_data(directory / f"{_ELSEWHERE}{restart_count}", b"", is_synced=False)


def read_claim(directory: Path, run_number: int) -> RunClaim:
    """Return the claim of one run. Raises `CheckpointError` when it is missing or not a claim."""
    path = directory / "runs" / f"{run_number:06d}.json"
    try:
        content = parse_json(read_data(path))
        name = content["resumed_from"]
        start = None if name is None else CheckpointId.parse(name)
        if name is not None and (start is None or start.run_number >= run_number):
            raise ValueError(f"resumed_from {name!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: not the claim of a run ({error}); restore it or move it away"
        ) from None
    return RunClaim(run_number=run_number, resumed_from=start)


def _choose(directory: Path, previous: int | None, *, verifies: bool) -> CheckpointId | None:
    """Return the newest undamaged checkpoint in the lineage of run `previous`; None if there was none."""
    by_run: dict[int, list[CheckpointId]] = {}
    for known in _checkpoints(directory / "checkpoints"):
        by_run.setdefault(known.run_number, []).append(known)
    if previous is None:
        if by_run:
            raise CheckpointError(
                f"{directory}: contains checkpoints but no runs/ that wrote them; move them away to start "
                "from the beginning"
            )
        return None
    damaged: list[str] = []
    run, newest = previous, None
    while True:
        eligible = [known for known in by_run.get(run, []) if newest is None or known.sequence <= newest]
        for known in sorted(eligible, reverse=True):
            if not verifies or _is_whole(directory / "checkpoints" / known.file_name, known.sha256):
                return known
            damaged.append(known.file_name)
            _LOG.warning("%s: checkpoint %s is damaged: trying the previous one", directory, known.file_name)
        start = read_claim(directory, run).resumed_from
        if start is None:
            break
        run, newest = start.run_number, start.sequence
        if start not in by_run.get(run, []):
            damaged.append(start.file_name)
    if damaged:
        raise DamagedCheckpointError(
            f"{directory}: all checkpoints are damaged ({', '.join(damaged)}); restore one, or move the "
            "directory away to start from the beginning"
        )
    return None


def _claimed_runs(runs: Path) -> Iterator[int]:
    for entry in os.scandir(runs):
        match = _CLAIM.fullmatch(entry.name)
        if match is not None:
            yield int(match[1])


def _checkpoints(files: Path) -> Iterator[CheckpointId]:
    for entry in os.scandir(files):
        known = CheckpointId.parse(entry.name)
        if known is not None:
            yield known


def _size_bytes(files: Path, known: CheckpointId) -> int:
    with contextlib.suppress(OSError):
        return (files / known.file_name).stat().st_size
    return 0


def _is_whole(path: Path, sha256: str) -> bool:
    digest = hashlib.sha256()
    try:
        # A FIFO is not waited for.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return False
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return False
    return digest.hexdigest() == sha256


class _HashingWriter:
    """Writes to a file and computes the SHA-256 of what is written. It cannot seek.

    `error` is the last error of writing: torch.save hides it behind one of its own.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        self._digest.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
