"""The options of one submission, from the three sources that sbatch reads.

The command line overrides SBATCH_* variables, and these override #SBATCH lines. Within a source the last
option counts (sbatch's manual; measured on 22.05.8).
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
_MAX_SIGTERM_LEAD_S, _MIN_SIGTERM_LEAD_S = 120, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchRequest:
    """The options of one submission, by source."""

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
        """Collect the three sources; of `environ` only sbatch's variables are used."""
        found = [
            (option.name, environ[variable])
            for option in SBATCH_OPTIONS
            for variable in option.variables
            if variable in environ and _sets_option(option.takes, environ[variable])
        ]
        return cls(command_line=tuple(command_line), environment=tuple(found), directives=tuple(directives))

    def given(self, *names: str) -> bool:
        """Return whether one of the options was given anywhere."""
        return self.effective_name(*names) is not None

    def value(self, name: str) -> str | None:
        """Return an option's effective value; None when it was not given, or given without one."""
        return next((values[-1][1] for _, values in self._by_source(name) if values), None)

    def effective_name(self, *names: str) -> str | None:
        """Return which of several options that override each other is in effect; None for none."""
        return next((values[-1][0] for _, values in self._by_source(*names) if values), None)

    def source_of(self, name: str) -> str:
        """Return, for messages, how an option was given: `--name`, its variable, or `#SBATCH --name`."""
        source = next((source for source, values in self._by_source(name) if values), "command line")
        if source == "environment":
            return next(option.variables[0] for option in SBATCH_OPTIONS if option.name == name)
        return f"--{name}" if source == "command line" else f"#SBATCH --{name}"

    def _by_source(self, *names: str) -> list[tuple[str, list[tuple[str, str | None]]]]:
        """Return the values given for `names` by source, the source that overrides the others first."""
        return [
            ("command line", [(o.name, o.value) for o in self.command_line if o.name in names]),
            ("environment", [(name, value) for name, value in self.environment if name in names]),
            ("script", [(o.name, o.value) for o in self.directives if o.name in names]),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedGpus:
    """The GPUs that a submission requests. `num_gpus` is None where their number cannot be computed."""

    is_given: bool
    num_gpus: int | None


def count_requested_gpus(request: SbatchRequest) -> RequestedGpus:
    """Count the GPUs that a submission requests over all its nodes (the minimum of a range of nodes)."""
    gres = request.value("gres")
    of_gres = count_gres_gpus(gres) if gres is not None else 0
    per_task_tres = request.value("tres-per-task")
    of_tres = count_gres_gpus(per_task_tres) if per_task_tres is not None else 0
    if not request.given(*_GPU_OPTIONS) and of_gres == 0 and of_tres == 0:
        return RequestedGpus(is_given=False, num_gpus=None)

    num_nodes = _first_number(request.value("nodes"), default=1)
    num_tasks = _num_tasks(request, num_nodes)
    counts: list[int | None] = []
    if (text := request.value("gpus")) is not None:
        counts.append(parse_gpu_list(text))
    elif (text := request.value("gpus-per-node")) is not None:
        counts.append(_product(parse_gpu_list(text), num_nodes))
    elif (text := request.value("gpus-per-task")) is not None:
        counts.append(_product(parse_gpu_list(text), num_tasks))
    elif of_gres != 0:
        counts.append(_product(of_gres, num_nodes))
    elif of_tres != 0:
        counts.append(_product(of_tres, num_tasks))
    return RequestedGpus(is_given=True, num_gpus=counts[0] if counts else None)


def count_requested_nodes(request: SbatchRequest) -> int:
    """Count the nodes that a submission requests at least; 1 where their number cannot be computed."""
    return _first_number(request.value("nodes"), default=1) or 1


def cpus_per_gpu_of_tasks(request: SbatchRequest, num_gpus: int) -> int:
    """Return the CPUs that each of `num_gpus` GPUs brings, so that each task of a submission has one.

    With fewer, Slurm never starts the job (22.05).
    """
    num_tasks = _num_tasks(request, count_requested_nodes(request))
    if num_tasks is None or num_gpus < 1 or request.given("overcommit"):
        return 1
    return max(math.ceil(num_tasks / num_gpus), 1)


def parse_gpu_list(text: str) -> int | None:
    """Add up `[type:]number[,[type:]number...]`; None when it is malformed (sbatch reports that)."""
    total = 0
    for item in text.split(","):
        number = item.rpartition(":")[2]
        if not _is_number(number):
            return None
        total += int(number)
    return total


def count_gres_gpus(text: str) -> int | None:
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
    """Parse a time limit in sbatch's forms; None for no limit, an infinite or a malformed one."""
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


def sigterm_lead_s(limit_s: float | None) -> int:
    """Return how long before the time limit the steps get SIGTERM, to write a last checkpoint.

    Slurm may send it up to a minute early, so a short job gets only a tenth of its time limit.
    """
    if limit_s is None:
        return _MAX_SIGTERM_LEAD_S
    return min(max(int(limit_s) // 10, _MIN_SIGTERM_LEAD_S), _MAX_SIGTERM_LEAD_S)


def _sets_option(takes: Takes, value: str) -> bool:
    """Whether a variable sets its option. Flags are set by "", "yes" or a number other than zero."""
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
