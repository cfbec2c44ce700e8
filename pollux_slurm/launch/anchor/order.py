"""What an anchor leaves for its wings, and for its own next start: two files beside the job's token.

The *order* says what the wings run and where their anchor listens. It holds two secrets, so only its owner
can read it. The *starts* count the starts of the training, over all runs of the anchor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pollux_slurm.errors import LaunchError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.system.private_files import read_private, write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What wings run: `command`, in `directory`.

    They reach their anchor at `address` and `port`, and prove that they know `link_secret`. `run_secret` is
    that of all processes of the training (`launch/node/rendezvous.py`). The rest are options of `pollux run`.
    """

    command: tuple[str, ...]
    directory: str
    anchor_id: str
    address: str
    port: int
    link_secret: str
    run_secret: str
    num_processes: int | None
    kill_after_s: float
    wrapper: tuple[str, ...]
    srun_arguments: tuple[str, ...]

    def write(self, file: Path) -> None:
        """Write the order. Raises `LaunchError`."""
        _write(file, asdict(self))

    @classmethod
    def read(cls, file: Path) -> Order:
        """Return the order of a file that only its reader can write. Raises `LaunchError`."""
        try:
            data = parse_json(read_private(file, is_secret=True))
            for name in ("command", "wrapper", "srun_arguments"):
                data[name] = tuple(data[name])
            return cls(**data)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LaunchError(f"the anchor's order cannot be read: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """How many starts the training has had, and for how many seconds it has trained in all."""

    count: int = 0
    trained_s: float = 0.0

    @classmethod
    def read(cls, file: Path) -> Starts:
        """Return what the file says; none where there is no file. Raises `LaunchError`."""
        try:
            data = parse_json(read_private(file))
            return cls(count=int(data["count"]), trained_s=float(data["trained_s"]))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
            # To count anew would give two starts the same number.
            raise LaunchError(
                f"{file}, which counts the starts of the training, cannot be read ({error}): write "
                '{"count": 3, "trained_s": 3600.0} into it if the last one was start 3 and an hour was '
                "trained, and requeue the job with scontrol requeue"
            ) from None

    def write(self, file: Path) -> None:
        """Write the file. Raises `LaunchError`."""
        _write(file, asdict(self))


def _write(file: Path, data: Mapping[str, Any]) -> None:
    try:
        write_private(file, json.dumps(data).encode())
    except OSError as error:
        raise LaunchError(f"{file} cannot be written: {error.strerror}") from None
