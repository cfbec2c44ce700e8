"""Keep one `worker.py` process, send it requests with a time limit, and replace it when it ends or hangs."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pollux_slurm.errors import SlurmError, SlurmUnavailable
from pollux_slurm.json_texts import parse_json
from pollux_slurm.slurm.commands.runner import clean_environ

_MAX_ANSWER_BYTES = 1 << 16
# Run by path: with -m, Python would also import modules from the folder in which the daemon was started.
_WORKER = Path(__file__).with_name("worker.py")


class PySlurmRefusedError(SlurmError):
    """Slurm's refusal of a request, with Slurm's error number, if any, and its message."""

    def __init__(self, number: int | None, message: str) -> None:
        super().__init__(message)
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    process: subprocess.Popen[bytes]
    stderr_file: IO[bytes]
    release: str


class PySlurmWorker:
    """A process that has PySlurm loaded, started at the first request.

    It runs with `clean_environ(environ)`. Each request takes at most `timeout_s`. A process that takes
    longer, or ends, is replaced at the next request. `on_run` is called with `pyslurm` for each request.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        timeout_s: float = 30.0,
        on_run: Callable[[str], None] = lambda _command: None,
        command: Sequence[str] = (sys.executable, str(_WORKER)),
    ) -> None:
        self._environ = clean_environ(environ)
        self._timeout_s = timeout_s
        self._on_run = on_run
        self._command = tuple(command)
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._end: Callable[[], object] = lambda: None

    def release(self) -> str:
        """Return PySlurm's release, such as `25.11.2`; `SlurmUnavailable` where it cannot be used."""
        with self._lock:
            return self._started().release

    def ask(self, do: str, job_id: str) -> Any:
        """Return the answer to one request about one job.

        Raises `PySlurmRefusedError` with Slurm's message, and `SlurmUnavailable` when there is no answer;
        the command may or may not have taken effect then.
        """
        with self._lock:
            running = self._started()
            self._on_run("pyslurm")
            answer = self._exchange(running, json.dumps({"do": do, "job": int(job_id)}))
        if "answer" not in answer:
            raise PySlurmRefusedError(answer.get("errno"), str(answer.get("message", ""))[:500])
        return answer["answer"]

    def close(self) -> None:
        """End the process. The next request starts another."""
        with self._lock:
            self._drop()

    def _started(self) -> _Running:
        if self._running is not None and self._running.process.poll() is None:
            return self._running
        self._drop()
        stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr_file,
                env=self._environ,
                bufsize=0,
                start_new_session=True,  # Ctrl-C must not end it: the daemon still finishes its moves
            )
        except OSError as error:
            stderr_file.close()
            raise SlurmUnavailable(f"{self._command[0]} cannot be run: {error.strerror}") from None
        self._end = weakref.finalize(self, _end, process, stderr_file)
        self._running = _Running(process=process, stderr_file=stderr_file, release="")
        greeting = self._exchange(self._running, None)
        self._running = _Running(
            process=process, stderr_file=stderr_file, release=str(greeting.get("answer"))
        )
        return self._running

    def _exchange(self, running: _Running, request: str | None) -> dict[str, Any]:
        try:
            if request is not None and running.process.stdin is not None:
                running.process.stdin.write(request.encode() + b"\n")
            line = self._line(running)
            answer = parse_json(line)
            if not isinstance(answer, dict):
                raise ValueError("no object")
        except TimeoutError:
            self._drop()
            raise SlurmUnavailable(
                f"PySlurm gave no answer within {self._timeout_s:g} s: slurmctld does not answer"
            ) from None
        except (OSError, ValueError):
            reason = _last_stderr_lines(running)
            self._drop()
            raise SlurmUnavailable(
                f"PySlurm's process ended: {reason}; check that PySlurm fits this Slurm (25.11) and that its "
                'slurm.conf can be read, or set backend = "commands" under [slurm]'
            ) from None
        except BaseException:  # interrupted: a late answer must not be taken for that of the next request
            self._drop()
            raise
        return answer

    def _line(self, running: _Running) -> bytes:
        """Return the next line; `TimeoutError` when none comes in time, `OSError` when none can."""
        assert running.process.stdout is not None
        descriptor = running.process.stdout.fileno()
        deadline = time.monotonic() + self._timeout_s
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise TimeoutError
                part = os.read(descriptor, 4096)
                if not part or len(line) > _MAX_ANSWER_BYTES:
                    raise OSError("no answer")
                line += part
        return line

    def _drop(self) -> None:
        self._end()
        self._running = None


def _last_stderr_lines(running: _Running) -> str:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        running.process.wait(timeout=1.0)
    try:
        running.stderr_file.seek(0, os.SEEK_END)
        running.stderr_file.seek(max(running.stderr_file.tell() - 2000, 0))
        text = running.stderr_file.read().decode("utf-8", "replace")
    except (OSError, ValueError):
        text = ""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-2:])[:500] or f"exit code {running.process.poll()}, no message"


def _end(process: subprocess.Popen[bytes], stderr_file: IO[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, stderr_file):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
