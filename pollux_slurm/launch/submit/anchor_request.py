"""Divide a submission into an anchor and its wings: which option is whose.

The anchor is the job that the owner sees: name, output, dependencies and mails are its own. Options that give
GPUs, CPUs and memory, or choose nodes, are the wings'; some are both's. The anchor itself takes one CPU. It
holds the licenses, since it alone lasts as long as the training.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pollux_slurm.config import MovesConfig
from pollux_slurm.errors import UsageError
from pollux_slurm.launch.submit.room_for_wings import Room
from pollux_slurm.launch.submit.wing_request import WingRequest, per_gpu
from pollux_slurm.slurm.sbatch.batch_script import directive_words
from pollux_slurm.slurm.sbatch.options import SBATCH_OPTIONS, GivenOption, parse_directives
from pollux_slurm.slurm.sbatch.request import (
    SbatchRequest,
    count_requested_gpus,
    cpus_per_gpu_of_tasks,
    time_limit_s,
)
from pollux_slurm.whole_numbers import whole_number

_BOTH = frozenset({"account", "qos", "reservation", "nice", "wckey", "propagate", "partition", "clusters"})
_OF_WINGS = frozenset(
    {
        *("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gpu-bind", "gpu-freq", "gres"),
        *("gres-flags", "tres-per-task", "tres-bind", "nodes", "nodelist", "nodefile", "exclude"),
        *("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-core", "ntasks-per-socket"),
        *("ntasks-per-tres", "cpus-per-task", "cpus-per-gpu", "mincpus", "cpu-freq", "core-spec"),
        *("thread-spec", "extra-node-info", "cores-per-socket", "sockets-per-node", "threads-per-core"),
        *("hint", "mem", "mem-per-gpu", "mem-per-cpu", "mem-bind", "tmp", "constraint", "prefer", "batch"),
        *("cluster-constraint", "contiguous", "distribution", "exclusive", "oversubscribe", "overcommit"),
        *("switches", "spread-job", "use-min-nodes", "segment", "network", "reboot", "signal"),
        *("time", "time-min", "power", "delay-boot", "resv-ports"),
    }
)
_BURST_BUFFERS = ("bb", "bbf")
# Said to the anchor's wings in other words, or not at all.
_NOT_PASSED_ON = frozenset({"signal", "time", "time-min"})
_CPU_OPTIONS = ("cpus-per-gpu", "cpus-per-task", "mincpus")
_MEMORY_OPTIONS = ("mem-per-gpu", "mem", "mem-per-cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRequest:
    """The anchor's half of a submission: the script's `head`, sbatch's `options`, and more `directives`.

    `hidden_variables` are those that sbatch must not read for it. `wings` is the other half. `notes` say what
    the queue will show.
    """

    head: str
    options: tuple[str, ...]
    directives: tuple[str, ...]
    hidden_variables: frozenset[str]
    wings: WingRequest
    notes: tuple[str, ...] = ()


def not_in_place_because(request: SbatchRequest) -> str | None:
    """Return why wings cannot have what a submission asks for; None where they can."""
    name = request.effective_name(*_BURST_BUFFERS)
    if name is None:
        return None
    return f"{request.source_of(name)}: processes that join could not reach the job's burst buffer"


def warnings_in_place(request: SbatchRequest) -> list[str]:
    """Return what a user must know of options that mean something else in place."""
    if not request.given("signal"):
        return []
    return [
        f"{request.source_of('signal')} has no effect in place: all processes get SIGTERM before the time "
        "limit, to write a checkpoint"
    ]


def divide(
    request: SbatchRequest, head: str, *, num_gpus: int, config: MovesConfig, room: Room
) -> AnchorRequest:
    """Divide a submission. `num_gpus` is what it starts with if it names no number."""
    limit_s = time_limit_s(request.value("time")) if request.given("time") else room.default_s
    time = [] if limit_s is None else [f"--time={_anchor_minutes(limit_s, config, room)}"]
    if limit_s is None and request.given("time"):
        time = [f"--time={request.value('time')}"]  # without a limit, or one that sbatch refuses
    # By CPU, of which it has one: some sites refuse memory by node.
    memory = [f"--mem-per-cpu={config.anchor_memory}"] if config.anchor_memory else []
    partition = [] if config.anchor_partition is None else [f"--partition={config.anchor_partition}"]
    moved = _OF_WINGS | ({"partition"} if partition else set())
    return AnchorRequest(
        head=_without(head, moved),
        options=tuple(word for words in _kept_words(request.command_line, moved) for word in words),
        directives=(
            "--nodes=1",
            "--ntasks=1",
            "--cpus-per-task=1",
            *memory,
            *time,
            *partition,
        ),
        hidden_variables=frozenset(
            variable for option in SBATCH_OPTIONS if option.name in moved for variable in option.variables
        ),
        wings=_wing_request(request, num_gpus, limit_s),
        notes=tuple(_notes(limit_s, time)),
    )


def _notes(limit_s: float | None, time: Sequence[str]) -> Iterator[str]:
    """Yield why squeue shows another time limit than the owner's."""
    if limit_s is None:
        return
    minutes, shown = math.ceil(limit_s / 60), int(time[0].partition("=")[2])
    if shown > minutes:
        yield (
            f"squeue shows the job, which is an anchor, with a limit of {shown} minutes: the training's "
            f"{minutes}, and time for its wings to wait in the queue (moves.wait_allowance_s); the training "
            "itself ends after its own"
        )


def _anchor_minutes(limit_s: float, config: MovesConfig, room: Room) -> int:
    """Return an anchor's time limit: the training's, and of the allowance what Slurm's limits leave."""
    asked, least = math.ceil((limit_s + config.wait_allowance_s) / 60), math.ceil(limit_s / 60)
    return asked if room.max_anchor_s is None else max(min(asked, int(room.max_anchor_s / 60)), least)


def _wing_request(request: SbatchRequest, num_gpus: int, limit_s: float | None) -> WingRequest:
    options = []
    for name in sorted((_OF_WINGS | _BOTH) - _NOT_PASSED_ON):
        if request.given(name):
            value = request.value(name)
            options.append(f"--{name}" if value is None else f"--{name}={value}")
    if limit_s is None and request.given("time"):
        options.append(f"--time={request.value('time')}")
    counted = count_requested_gpus(request)
    if not counted.is_given:
        options.append(f"--gpus={num_gpus}")
    gpus = counted.num_gpus or num_gpus
    if not request.given(*_CPU_OPTIONS):
        options.append(f"--cpus-per-gpu={_cpus_per_gpu(request, gpus)}")  # else they do not follow the GPUs
    return WingRequest(
        options=tuple(options),
        cpus_per_gpu=_cpus_per_gpu(request, gpus),
        memory_per_gpu=_memory_per_gpu(request, gpus),
        gpu_type=_gpu_type(request),
        time_limit_s=limit_s,
    )


def _cpus_per_gpu(request: SbatchRequest, num_gpus: int) -> int:
    name = request.effective_name(*_CPU_OPTIONS)
    found = re.match(r"[1-9][0-9]{0,5}", request.value(name) or "") if name is not None else None
    if found is None:
        return cpus_per_gpu_of_tasks(request, num_gpus)
    count = int(found[0])
    if name == "cpus-per-task":
        tasks = request.value("ntasks") or request.value("ntasks-per-node") or "1"
        count = math.ceil(count * (whole_number(tasks) or 1) / max(num_gpus, 1))
    return count


def _memory_per_gpu(request: SbatchRequest, num_gpus: int) -> str | None:
    name = request.effective_name(*_MEMORY_OPTIONS)
    value = None if name is None else request.value(name)
    if value is None or not re.fullmatch(r"[0-9]{1,15}[KMGTkmgt]?", value) or value == "0":
        return None
    if name == "mem-per-gpu":
        return value
    if name == "mem-per-cpu":
        return per_gpu(value, 1) if _cpus_per_gpu(request, num_gpus) == 1 else None
    nodes = request.value("nodes") or "1"
    return per_gpu(value, max(num_gpus // (whole_number(nodes) or 1), 1))


def _gpu_type(request: SbatchRequest) -> str | None:
    """Return the type of GPU that is named; None for none. Raises `UsageError` for several."""
    types = set()
    for name in ("gpus", "gpus-per-node", "gpus-per-task", "gres", "tres-per-task"):
        for item in (request.value(name) or "").split(","):
            parts = re.split(r"[:=]", item.removeprefix("gres/").removeprefix("gres:"))
            if name in ("gres", "tres-per-task"):
                if parts[0] != "gpu":
                    continue
                parts = parts[1:]
            types |= {part for part in parts[:1] if part and not part.isdecimal()}
    if len(types) > 1:
        raise UsageError(f"--in-place: one type of GPU can be asked for, not {', '.join(sorted(types))}")
    return next(iter(types), None)


def _kept_words(options: Sequence[GivenOption], moved: Collection[str]) -> list[list[str]]:
    """Return the words of each option that stays with the anchor.

    A known one is written as one long option, since several letters in one word may part.
    """
    words: list[list[str]] = []
    for option in options:
        if option.name is None:
            words.append(list(option.words))
        elif option.name not in moved:
            words.append([f"--{option.name}" if option.value is None else f"--{option.name}={option.value}"])
    return words


def _without(head: str, moved: Collection[str]) -> str:
    """Return a script's head without the options that move."""
    lines = []
    for line in head.splitlines(keepends=True):
        is_directive = line.startswith("#SBATCH")
        options = parse_directives(directive_words(line[len("#SBATCH") :])) if is_directive else ()
        if not any(option.name in moved for option in options):
            lines.append(line)
        else:
            kept = _kept_words(options, moved)
            lines += [f"#SBATCH {' '.join(_quoted(word) for word in words)}\n" for words in kept]
    return "".join(lines)


def _quoted(word: str) -> str:
    """Quote a word by sbatch's own rules (`batch_script.directive_words`)."""
    if not re.search(r"""[\s"'\\#]""", word):
        return word
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'
