"""What a user asks of sbatch, from all three places that sbatch reads: command line, environment, script.

The command line wins over SBATCH_* variables, these win over #SBATCH lines, and in each place the last word
counts (sbatch's manual; measured on 22.05.8).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pollux_slurm.slurm.sbatch.options import SBATCH_OPTIONS, GivenOption, Takes

_TRUE = re.compile(r"|yes|0*[1-9][0-9]*", re.IGNORECASE)
_GPU_OPTIONS = (
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gpus-per-socket",
    "ntasks-per-gpu",
)
_LONGEST_WARNING_S, _SHORTEST_WARNING_S = 120, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchRequest:
    """The options of one submission, by where they were given."""

    command_line: tuple[GivenOption, ...]
    environment: tuple[tuple[str, str], ...]
    directives: tuple[GivenOption, ...]

    @classmethod
    def of(
        cls,
        command_line: Sequence[GivenOption],
        environ: Mapping[str, str],
        directives: Sequence[GivenOption],
    ) -> SbatchRequest:
        """Collect the three; `environ` is the whole environment, of which only sbatch's variables count."""
        found = [
            (option.name, environ[variable])
            for option in SBATCH_OPTIONS
            for variable in option.variables
            if variable in environ and _holds(option.takes, environ[variable])
        ]
        return cls(command_line=tuple(command_line), environment=tuple(found), directives=tuple(directives))

    def given(self, *names: str) -> bool:
        """Tell whether one of the options was given anywhere."""
        return self.winner(*names) is not None

    def value(self, name: str) -> str | None:
        """Return the value that holds for an option; None when it was not given (or stands without one)."""
        return next((values[-1][1] for _, values in self._places(name) if values), None)

    def winner(self, *names: str) -> str | None:
        """Return which of several options that undo each other holds; None when none was given."""
        return next((values[-1][0] for _, values in self._places(*names) if values), None)

    def where(self, name: str) -> str:
        """Say for a message where an option that was given stands."""
        place = next((place for place, values in self._places(name) if values), "command line")
        if place == "environment":
            return next(option.variables[0] for option in SBATCH_OPTIONS if option.name == name)
        return f"--{name}" if place == "command line" else f"#SBATCH --{name}"

    def _places(self, *names: str) -> list[tuple[str, list[tuple[str, str | None]]]]:
        """Return what the three places say of `names`, the place that wins first."""
        return [
            ("command line", [(o.name, o.value) for o in self.command_line if o.name in names]),
            ("environment", [(name, value) for name, value in self.environment if name in names]),
            ("script", [(o.name, o.value) for o in self.directives if o.name in names]),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingGpus:
    """What the user says of GPUs. `num_gpus` is None when it is said, but cannot be counted from here."""

    is_given: bool
    num_gpus: int | None


def starting_gpus(request: SbatchRequest) -> StartingGpus:
    """Count the GPUs that a submission asks for, over all its nodes (the fewest, of a range of nodes)."""
    gres = request.value("gres")
    of_gres = gres_gpus(gres) if gres is not None else 0
    per_task_tres = request.value("tres-per-task")
    of_tres = gres_gpus(per_task_tres) if per_task_tres is not None else 0
    if not request.given(*_GPU_OPTIONS) and of_gres == 0 and of_tres == 0:
        return StartingGpus(is_given=False, num_gpus=None)

    num_nodes = _first_number(request.value("nodes"), default=1)
    num_tasks = _num_tasks(request, num_nodes)
    counts: list[int | None] = []
    if (text := request.value("gpus")) is not None:
        counts.append(typed_count(text))
    elif (text := request.value("gpus-per-node")) is not None:
        counts.append(_product(typed_count(text), num_nodes))
    elif (text := request.value("gpus-per-task")) is not None:
        counts.append(_product(typed_count(text), num_tasks))
    elif of_gres != 0:
        counts.append(_product(of_gres, num_nodes))
    elif of_tres != 0:
        counts.append(_product(of_tres, num_tasks))
    return StartingGpus(is_given=True, num_gpus=counts[0] if counts else None)


def typed_count(text: str) -> int | None:
    """Read `[type:]number[,[type:]number...]`; None when it is malformed (sbatch will say so)."""
    total = 0
    for item in text.split(","):
        number = item.rpartition(":")[2]
        if not _is_number(number):
            return None
        total += int(number)
    return total


def gres_gpus(text: str) -> int | None:
    """Count the GPUs in a list of generic resources such as `gpu:a100:2,nvme:1`; 0 when it names none."""
    total = 0
    for item in text.split(","):
        parts = re.split(r"[:=]", item.strip().removeprefix("gres:").removeprefix("gres/"))
        if parts[0] != "gpu":
            continue
        last = parts[-1]
        if _is_number(last):
            total += int(last)
        elif len(parts) <= 2:  # `gpu` and `gpu:a100` mean one
            total += 1
        else:
            return None
    return total


def time_limit_s(text: str | None) -> float | None:
    """Read sbatch's forms of a time limit; None for none, for an infinite one and for what is malformed."""
    found = re.fullmatch(
        r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?", (text or "").strip()
    )
    if found is None:
        return None
    days, first, second, third = (int(part) if part else 0 for part in found.groups())
    if found[1] is not None:  # days-hours[:minutes[:seconds]]
        total_s = ((days * 24 + first) * 60 + second) * 60 + third
    elif found[4] is not None:  # hours:minutes:seconds
        total_s = (first * 60 + second) * 60 + third
    else:  # minutes[:seconds]
        total_s = first * 60 + second
    return float(total_s) if total_s > 0 and math.isfinite(total_s) else None


def warning_s(limit_s: float | None) -> int:
    """Return how long before the time limit the steps get SIGTERM, to write a last checkpoint.

    Slurm may send it up to a minute early, so of a short job only a tenth is taken.
    """
    if limit_s is None:
        return _LONGEST_WARNING_S
    return min(max(int(limit_s) // 10, _SHORTEST_WARNING_S), _LONGEST_WARNING_S)


def _holds(takes: Takes, value: str) -> bool:
    """Whether a variable sets its option: flags by "", "yes" or a number that is not zero."""
    return bool(value) if takes is Takes.VALUE else takes is Takes.OPTIONAL or bool(_TRUE.fullmatch(value))


def _num_tasks(request: SbatchRequest, num_nodes: int | None) -> int | None:
    if (text := request.value("ntasks")) is not None:
        return _first_number(text, default=1)
    return _product(_first_number(request.value("ntasks-per-node"), default=1), num_nodes)


def _first_number(text: str | None, *, default: int) -> int | None:
    if text is None:
        return default
    found = re.match(r"[0-9]{1,9}", text.strip())
    return int(found[0]) if found is not None else None


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,9}", text))


def _product(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first * second
