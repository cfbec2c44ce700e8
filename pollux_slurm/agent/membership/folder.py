"""The membership of the processes of one machine: files in a folder that only their user can enter.

    ready-000002-5          a newcomer that waits to join
    plan-000002.json        the launcher's plan, written once all newcomers are ready
    generation-000002.json  committed: rank 0 has linked the plan to this name
    refused-000002.json     the reason why not; number 0 stands for every generation
    given-up-000002.json, regrouped-000002.json, meeting-000002

A number is used once. To withdraw a plan is to delete it. A link to a deleted file fails, so a plan is either
withdrawn or committed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pollux_slurm.agent.membership.generation import Generation, Member
from pollux_slurm.errors import PrivateFileError, StoreUnavailable
from pollux_slurm.json_texts import parse_json
from pollux_slurm.system.private_files import read_private, write_private

# Rank 0 looks for a plan at step boundaries, which may be a millisecond apart.
_LOOK_INTERVAL_S = 0.02
_NUMBERED = re.compile(r"(?P<kind>[a-z-]+)-(?P<number>[0-9]{6,})(-[0-9]+)?(\.json)?")


class MembershipFolder:
    """The files of a training's membership, for the launcher and its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _file(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:06d}.json"

    def _ready(self, number: int, member: str) -> Path:
        return self.folder / f"ready-{number:06d}-{member}"

    def _numbered(self) -> Iterator[tuple[str, int, Path]]:
        """Yield the kind and the number of each file that belongs to a generation."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):  # noqa: PTH208 - at each step boundary
                found = _NUMBERED.fullmatch(name)
                if found is not None:
                    yield found["kind"], int(found["number"]), self.folder / name

    # ------------------------------------------------------------------------------------ for the launcher

    def write_plan(self, generation: Generation) -> None:
        """Show a plan to rank 0. Its newcomers must be ready. Raises `OSError`."""
        members = [asdict(one) for one in generation.members]
        write_json(self._file("plan", generation.number), {"number": generation.number, "members": members})

    def withdraw(self, number: int) -> bool:
        """Withdraw a plan; False if it is committed."""
        # Where deleting fails, so does linking.
        with contextlib.suppress(OSError):
            self._file("plan", number).unlink(missing_ok=True)
        if self._file("generation", number).exists():
            return False
        self.give_up(number)
        return True

    def give_up(self, number: int) -> None:
        """Tell the members of a generation that it cannot be: it was withdrawn, or one of them has ended."""
        with contextlib.suppress(OSError, PrivateFileError):
            write_private(self._file("given-up", number), b"", is_synced=False)

    def is_ready(self, number: int, member: str) -> bool:
        """Return whether a newcomer waits to join."""
        return self._ready(number, member).exists()

    def refusal(self, number: int) -> str | None:
        """Return the reason for which the script cannot form a generation, or none at all."""
        found = read_json(self._file("refused", 0)) or read_json(self._file("refused", number))
        return str(found["reason"]) if found and "reason" in found else None

    def standstill_s(self, number: int) -> float | None:
        """Return how long training stood still before the first step of a generation; None before that."""
        found = read_json(self._file("regrouped", number)) or {}
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            return float(found["standstill_s"])
        return None

    def forget(self, *, before: int) -> None:
        """Delete the files of former generations, and of plans that were withdrawn before this one."""
        for _, number, path in self._numbered():
            if 0 < number < before:
                with contextlib.suppress(OSError):
                    path.unlink()

    def newest_generation(self) -> int:
        """Return the number of the newest committed generation; 0 for the first members."""
        return max((number for kind, number, _ in self._numbered() if kind == "generation"), default=0)

    # ----------------------------------------------------------------------------------- for the processes

    def plan_after(self, number: int) -> Generation | None:
        """Return the plan of a generation after another one: several in between may have been withdrawn."""
        found = [planned for kind, planned, _ in self._numbered() if kind == "plan" and planned > number]
        return _generation(read_json(self._file("plan", max(found)))) if found else None

    def commit(self, number: int) -> bool:
        """Commit a plan; False if it was withdrawn."""
        committed = self._file("generation", number)
        try:
            os.link(self._file("plan", number), committed)
        except FileExistsError:
            return True
        except FileNotFoundError:
            return committed.exists()
        except OSError as error:
            raise StoreUnavailable(f"{self.folder}: {error}") from error
        return True

    def committed(self, number: int) -> Generation | None:
        """Return a generation once it is committed."""
        return _generation(read_json(self._file("generation", number)))

    def is_given_up(self, number: int) -> bool:
        """Return whether a generation was given up."""
        return self._file("given-up", number).exists()

    def report_ready(self, number: int, member: str) -> None:
        """Report a newcomer that waits to join."""
        with contextlib.suppress(OSError, PrivateFileError):
            write_private(self._ready(number, member), b"", is_synced=False)

    def refuse(self, number: int, reason: str) -> None:
        """Keep the reason for which the script cannot form a generation, or none at all (0)."""
        with contextlib.suppress(OSError, PrivateFileError):
            write_json(self._file("refused", number), {"reason": reason})

    def report_regrouped(self, number: int, standstill_s: float) -> None:
        """Report the first step of a generation."""
        with contextlib.suppress(OSError, PrivateFileError):
            write_json(self._file("regrouped", number), {"standstill_s": standstill_s})


class FolderMembership:
    """One process's view of a `MembershipFolder` (a `Membership`)."""

    host = None

    def __init__(self, folder: Path, member: str, *, joins: int | None) -> None:
        self._folder, self.member, self.joins = MembershipFolder(folder), member, joins
        self._next_look_s = 0.0

    def planned(self, after: int) -> Generation | None:
        now = time.monotonic()
        if now < self._next_look_s:
            return None
        plan = self._folder.plan_after(after)
        if plan is None:
            self._next_look_s = now + _LOOK_INTERVAL_S
        return plan

    def announced(self, after: int) -> Generation | None:
        return None

    def commit(self, number: int, meeting: str | None = None) -> bool:
        return self._folder.commit(number)

    def committed(self, number: int) -> Generation | None:
        found = self._folder.committed(number)
        file = self._folder.folder / f"meeting-{number:06d}"
        return None if found is None else replace(found, meeting=str(file))

    def is_given_up(self, number: int) -> bool:
        return self._folder.is_given_up(number)

    def report_ready(self) -> None:
        if self.joins is not None:
            self._folder.report_ready(self.joins, self.member)

    def report_regrouped(self, number: int, *, standstill_s: float) -> None:
        self._folder.report_regrouped(number, standstill_s)

    def refuse(self, number: int, reason: str) -> None:
        self._folder.refuse(number, reason)

    def close(self, *, timeout_s: float) -> None:
        """Nothing is left to be said: files are written at once."""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file that appears at once and whole. Raises `OSError` and `PrivateFileError`."""
    write_private(path, json.dumps(content).encode(), is_synced=False)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a file's content; None where there is none of this user's, or it is no object."""
    try:
        content = parse_json(read_private(path))
    except (OSError, ValueError, PrivateFileError):
        return None
    return content if isinstance(content, dict) else None


def _generation(content: Mapping[str, Any] | None) -> Generation | None:
    """Return the generation of a file; None for a file of another form."""
    content = content or {}
    with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
        members = tuple(Member(**one) for one in content["members"])
        return Generation(number=int(content["number"]), members=members)
    return None
