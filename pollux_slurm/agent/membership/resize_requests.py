"""What `pollux resize` asks of a `pollux run` on the same machine: files in the run's private folder.

run.json         the launcher's process id and command; it locks the folder as long as it runs
wanted-….json    a request; who has asked deletes it to withdraw it
answer-….json    what came of it
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pollux_slurm.agent.membership.folder import MembershipFolder, read_json, write_json
from pollux_slurm.errors import LaunchError, PrivateFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest:
    """What somebody asks for: how many processes, and the ranks of those that leave (else the last ones).

    `generation` is the one whose ranks are meant. Names of requests are in the order of time.
    """

    id: str
    num_processes: int
    generation: int
    leaves: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeAnswer:
    """Whether a request was carried out, and how long training stood still, or why it was not."""

    is_done: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedRun:
    """A run on this machine whose processes may join and leave."""

    pid: int
    command: str


class ResizeRequests:
    """The requests in one run's folder, for the launcher and for those who ask."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # ------------------------------------------------------------------------------------ for the launcher

    @contextlib.contextmanager
    def announced(self, command: Sequence[str]) -> Iterator[None]:
        """Let others find this run during the block. The lock ends with this process, however it ends."""
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            write_json(self.folder / "run.json", {"pid": os.getpid(), "command": shlex.join(command)})
            yield
        finally:
            os.close(handle)

    def take(self) -> ResizeRequest | None:
        """Begin the oldest request that waits."""
        for path in _sorted(self.folder, "wanted-"):
            content = read_json(path)
            with contextlib.suppress(KeyError, TypeError, ValueError, OSError):
                if content is not None:
                    request = ResizeRequest(**{**content, "leaves": tuple(content["leaves"])})
                    path.rename(self._file("begun", request))
                    return request
            with contextlib.suppress(OSError):
                path.unlink()  # of another release
        return None

    def is_withdrawn(self, request: ResizeRequest) -> bool:
        """Return whether a request that was begun has been withdrawn."""
        return not self._file("begun", request).exists()

    def answer(self, request: ResizeRequest, answer: ResizeAnswer) -> None:
        """Answer a request. Who has asked waits in vain where that cannot be written."""
        with contextlib.suppress(OSError, PrivateFileError):
            write_json(self._file("answer", request), asdict(answer))
        self._delete("begun", request)

    # ---------------------------------------------------------------------------------- for those who ask

    def run(self) -> AnnouncedRun | None:
        """Return the run; None where its launcher has ended, or its processes are fixed."""
        try:
            handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found = read_json(self.folder / "run.json") or {}
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                return AnnouncedRun(pid=int(found["pid"]), command=str(found["command"]))
        except OSError:
            return None
        finally:
            os.close(handle)
        return None

    def ask(self, num_processes: int, leaves: Sequence[int] = ()) -> ResizeRequest:
        """Ask the launcher for another number of processes. Raises `LaunchError` where that is impossible."""
        request = ResizeRequest(
            id=f"{time.time_ns():020d}-{secrets.token_hex(4)}",
            num_processes=num_processes,
            generation=MembershipFolder(self.folder).newest_generation(),
            leaves=tuple(leaves),
        )
        try:
            write_json(self._file("wanted", request), asdict(request))
        except FileNotFoundError:
            raise LaunchError("the run has just ended") from None
        except OSError as error:
            raise LaunchError(f"{self.folder}: no request can be written: {error.strerror}") from None
        return request

    def withdraw(self, request: ResizeRequest) -> bool:
        """Take a request back; False if it was begun: it is answered, unless the processes are changing."""
        if self._delete("wanted", request):
            return True
        self._delete("begun", request)
        return False

    def take_answer(self, request: ResizeRequest) -> ResizeAnswer | None:
        """Return the answer to a request, and delete it; None while there is none."""
        found = read_json(self._file("answer", request))
        if found is None:
            return None
        self._delete("answer", request)
        return ResizeAnswer(is_done=bool(found.get("is_done")), text=str(found.get("text")))

    def _file(self, kind: str, request: ResizeRequest) -> Path:
        return self.folder / f"{kind}-{request.id}.json"

    def _delete(self, kind: str, request: ResizeRequest) -> bool:
        try:
            self._file(kind, request).unlink()
        except OSError:
            return False
        return True


def _sorted(folder: Path, prefix: str) -> list[Path]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - many times a second
    except OSError:
        return []
    return [folder / name for name in sorted(names) if name.startswith(prefix)]
