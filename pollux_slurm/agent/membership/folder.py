"""The membership of the processes of one machine: files in a folder that only their user can enter.

    wanted-…, answer-…    what `pollux resize` asks for, and what came of it
    run.json              the launcher's process id and command, for `pollux resize`
    plan-000002.json      the launcher's plan, written once all newcomers are ready
    generation-000002.json  committed: rank 0 has linked the plan to this name, which exactly one can do
    ready-5, refused-000002, given-up-000002, regrouped-000002.json

To withdraw a plan is to delete it. A link to a deleted file fails, so a plan is either withdrawn or
committed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pollux_slurm.agent.membership.generation import Generation, Member
from pollux_slurm.errors import StoreUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest:
    """What somebody asks for: how many processes, and the ranks of those that leave (else the last ones)."""

    id: str
    num_processes: int
    leaves: tuple[int, ...] = ()


class MembershipFolder:
    """The files of a training's membership, for the launcher and `pollux resize`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _file(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:06d}.json"

    def announce(self, command: Sequence[str]) -> None:
        """Let `pollux resize` find this run."""
        write_json(self.folder / "run.json", {"pid": os.getpid(), "command": list(command)})

    def run(self) -> tuple[int, str] | None:
        """Return the launcher's process id and its command; None for a run that cannot be resized."""
        found = read_json(self.folder / "run.json")
        return None if found is None else (int(found["pid"]), " ".join(found["command"]))

    # ------------------------------------------------------------------------------------- requests

    def ask(self, num_processes: int, leaves: tuple[int, ...] = ()) -> ResizeRequest:
        """Ask the launcher for another number of processes."""
        # Names are in the order of the requests.
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        request = ResizeRequest(id=name, num_processes=num_processes, leaves=leaves)
        write_json(self.folder / f"wanted-{name}.json", asdict(request))
        return request

    def next_request(self) -> ResizeRequest | None:
        """Return the oldest request without an answer."""
        for path in sorted(self.folder.glob("wanted-*.json")):
            content = read_json(path)
            if content is not None:
                return ResizeRequest(**{**content, "leaves": tuple(content["leaves"])})
        return None

    def answer(self, request: ResizeRequest, *, is_done: bool, text: str) -> None:
        """Answer a request, whether it was carried out or not."""
        write_json(self.folder / f"answer-{request.id}.json", {"is_done": is_done, "text": text})
        (self.folder / f"wanted-{request.id}.json").unlink(missing_ok=True)

    def answered(self, request: ResizeRequest) -> tuple[bool, str] | None:
        """Return whether a request was carried out, and a text; None while there is no answer."""
        found = read_json(self.folder / f"answer-{request.id}.json")
        return None if found is None else (bool(found["is_done"]), str(found["text"]))

    def next_number(self, after: int) -> int:
        """Return the number of the next generation: that of a plan that was given up can be used again."""
        number = after + 1
        for kind in ("plan", "refused", "given-up"):
            self._file(kind, number).unlink(missing_ok=True)
        return number

    # ------------------------------------------------------------------------------------- membership

    def write_plan(self, generation: Generation) -> None:
        """Show a plan to rank 0. Its newcomers must be ready."""
        members = [asdict(one) for one in generation.members]
        write_json(self._file("plan", generation.number), {"number": generation.number, "members": members})

    def withdraw(self, number: int) -> bool:
        """Withdraw a plan; False if it is committed."""
        self._file("plan", number).unlink(missing_ok=True)
        if self._file("generation", number).exists():
            return False
        self.give_up(number)
        return True

    def give_up(self, number: int) -> None:
        """Tell the members of a generation that it cannot be: it was withdrawn, or one of them has ended."""
        self._file("given-up", number).touch()

    def is_given_up(self, number: int) -> bool:
        """Return whether a generation was given up."""
        return self._file("given-up", number).exists()

    def planned(self, number: int) -> Generation | None:
        """Return a plan that was not withdrawn."""
        return _generation(read_json(self._file("plan", number)))

    def committed(self, number: int) -> Generation | None:
        """Return a generation once it is committed."""
        return _generation(read_json(self._file("generation", number)))

    def commit(self, number: int) -> bool:
        """Commit a plan; False if it was withdrawn."""
        try:
            os.link(self._file("plan", number), self._file("generation", number))
        except FileExistsError:
            return True
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreUnavailable(f"{self.folder}: {error}") from error
        return True

    def is_ready(self, member: str) -> bool:
        """Return whether a newcomer waits to join."""
        return (self.folder / f"ready-{member}").exists()

    def report_ready(self, member: str) -> None:
        """Report a newcomer that waits to join."""
        with contextlib.suppress(OSError):
            (self.folder / f"ready-{member}").touch()

    def refuse(self, number: int, reason: str) -> None:
        """Keep the reason for which the script cannot form a generation."""
        with contextlib.suppress(OSError):
            write_json(self._file("refused", number), {"reason": reason})

    def refusal(self, number: int) -> str | None:
        """Return the reason for which the script cannot form a generation."""
        found = read_json(self._file("refused", number))
        return None if found is None else str(found["reason"])

    def report_regrouped(self, number: int, standstill_s: float) -> None:
        """Report the first step of a generation."""
        with contextlib.suppress(OSError):
            write_json(self._file("regrouped", number), {"standstill_s": standstill_s})

    def standstill_s(self, number: int) -> float | None:
        """Return how long training stood still before the first step of a generation; None before that."""
        found = read_json(self._file("regrouped", number))
        return None if found is None else float(found["standstill_s"])


class FolderMembership:
    """One process's view of a `MembershipFolder` (a `Membership`)."""

    def __init__(self, folder: Path, member: str, *, joins: int | None) -> None:
        self._folder, self.member, self.joins = MembershipFolder(folder), member, joins

    def planned(self, after: int) -> Generation | None:
        return self._folder.planned(after + 1)

    def commit(self, number: int) -> bool:
        return self._folder.commit(number)

    def committed(self, number: int) -> Generation | None:
        return self._folder.committed(number)

    def is_given_up(self, number: int) -> bool:
        return self._folder.is_given_up(number)

    def report_ready(self) -> None:
        self._folder.report_ready(self.member)

    def report_regrouped(self, number: int, *, standstill_s: float) -> None:
        self._folder.report_regrouped(number, standstill_s)

    def refuse(self, number: int, reason: str) -> None:
        self._folder.refuse(number, reason)

    def meeting_file(self, number: int) -> Path:
        return self._folder.folder / f"meeting-{number:06d}"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file that appears at once and whole."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.rename(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a file's content; None where there is none."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content


def _generation(content: Mapping[str, Any] | None) -> Generation | None:
    if content is None:
        return None
    return Generation(
        number=int(content["number"]), members=tuple(Member(**one) for one in content["members"])
    )
