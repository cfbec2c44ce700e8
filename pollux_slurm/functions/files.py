"""The files of a submitted function: a folder of the job's checkpoint directory that only its owner enters.

    call.json           where Python finds the modules of the function, and its name
    call.pkl            the function and its arguments
    rank-000000.outcome what a rank returned or raised: a line of JSON, then a pickle
    job.json            the job's number and its logs

Pickles run code when they are read. So each file is checked first: it must be the reader's own, and nobody
else may write it. Neither daemon nor store ever reads one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pollux_slurm.agent.environment.job_environment import JobEnvironment
from pollux_slurm.errors import ConfigError, JobFailedError, PrivateFileError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.system.private_files import read_private, write_private

CALL, CALL_INFO, JOB = "call.pkl", "call.json", "job.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the function gave on one rank. `run` is the same for all ranks of one start of the processes.

    `error` is the text of a traceback; `pickled` is then the exception, empty if it cannot be pickled.
    Otherwise it is the returned value. `at` is when, in seconds since 1970.
    """

    run: str
    restart_count: int
    rank: int
    world_size: int
    at: float
    error: str | None
    pickled: bytes

    def value(self) -> Any:
        """Return the unpickled value or exception."""
        return pickle.loads(self.pickled)


def run_id(environment: JobEnvironment) -> str:
    """Return a name of this start of the processes that does not give its secret away."""
    text = f"{environment.secret} {environment.restart_count}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_own(path: Path) -> bytes:
    """Return the content of an own file. Raises `JobFailedError` for one that others may have written."""
    try:
        return read_private(path)
    except PrivateFileError as error:
        raise JobFailedError(
            f"{path} is not read, since it may contain another user's code: {error}"
        ) from None
    except OSError as error:
        raise JobFailedError(f"{path} cannot be read: {error.strerror}") from None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write what the function gave on one rank, over what an earlier run left."""
    header = {key: value for key, value in asdict(outcome).items() if key != "pickled"}
    content = json.dumps(header).encode() + b"\n" + outcome.pickled
    write_private(folder / f"rank-{outcome.rank:06d}.outcome", content)


def read_outcomes(folder: Path) -> list[Outcome]:
    """Return what the ranks of the newest run with any outcome have given, in rank order."""
    found = []
    for path in sorted(folder.glob("rank-*.outcome")):
        header, _, pickled = read_own(path).partition(b"\n")
        try:
            found.append(Outcome(**parse_json(header), pickled=pickled))
        except (ValueError, TypeError) as error:
            raise JobFailedError(f"{path} is not what pollux has written ({error})") from None
    if not found:
        return []
    newest = max(found, key=lambda outcome: (outcome.restart_count, outcome.at)).run
    return [outcome for outcome in found if outcome.run == newest]


def remove_older_outcomes(folder: Path, run: str) -> None:
    """Remove what earlier runs have left."""
    for path in folder.glob("rank-*.outcome"):
        with contextlib.suppress(JobFailedError, FileNotFoundError, ValueError, TypeError, KeyError):
            if parse_json(read_own(path).partition(b"\n")[0])["run"] != run:
                path.unlink()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data to a file of this folder."""
    write_private(path, json.dumps(content, indent=1).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the plain data of a file of this folder."""
    try:
        content: dict[str, Any] = parse_json(read_own(path))
    except ValueError as error:
        raise JobFailedError(f"{path} is not what pollux has written ({error})") from None
    return content


def cloudpickle() -> ModuleType:
    """Return the module cloudpickle, which also pickles functions of notebooks and scripts."""
    try:
        return import_module("cloudpickle")
    except ImportError:
        raise ConfigError(
            "functions are submitted with cloudpickle, which is missing here: pip install cloudpickle"
        ) from None
