"""The options of sbatch, and how sbatch reads a command line.

The table is the union of sbatch's options from Slurm 22.05 (its own table for getopt_long) to 26.05 (manual
pages). It decides which words belong to options, and which word is the script. Values are checked by sbatch
only. The options that pyxis adds are in a table beside it. Options that both lack are passed unchanged: an
unknown `--name=value` is one word, an unknown `--name` or `-x` takes no value.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pollux_slurm.errors import UsageError


class Takes(enum.Enum):
    """Whether an option takes a value. An optional value is in the same word: `--nice=5`, `-koff`."""

    NOTHING = "nothing"
    OPTIONAL = "optional"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class SbatchOption:
    """One option: `name` without dashes, its letter if it has one, and the variables sbatch reads it from."""

    name: str
    takes: Takes = Takes.VALUE
    letter: str = ""
    variables: tuple[str, ...] = ()


def _rows() -> Iterator[SbatchOption]:
    """Yield the table: name, letter, what it takes, SBATCH_* variables (22.05's manual and later ones)."""
    value, optional, nothing = Takes.VALUE, Takes.OPTIONAL, Takes.NOTHING
    for name, letter, takes, *variables in (
        ("account", "A", value, "SBATCH_ACCOUNT"),
        ("acctg-freq", "", value, "SBATCH_ACCTG_FREQ"),
        ("array", "a", value, "SBATCH_ARRAY_INX"),
        ("batch", "", value, "SBATCH_BATCH"),
        ("bb", "", value),
        ("bbf", "", value),
        ("begin", "b", value),
        ("chdir", "D", value),
        ("cluster", "", value),
        ("cluster-constraint", "", value),
        ("clusters", "M", value, "SBATCH_CLUSTERS", "SLURM_CLUSTERS"),
        ("comment", "", value),
        ("consolidate-segments", "", nothing),  # 25.11
        ("constraint", "C", value, "SBATCH_CONSTRAINT"),
        ("container", "", value, "SBATCH_CONTAINER"),
        ("container-id", "", value, "SBATCH_CONTAINER_ID"),  # 23.02
        ("container-type", "", value),  # 26.05
        ("context", "", value),
        ("contiguous", "", nothing),
        ("core-spec", "S", value, "SBATCH_CORE_SPEC"),
        ("cores-per-socket", "", value),
        ("cpu-freq", "", value),
        ("cpus-per-gpu", "", value, "SBATCH_CPUS_PER_GPU"),
        ("cpus-per-task", "c", value, "SBATCH_CPUS_PER_TASK"),
        ("deadline", "", value),
        ("delay-boot", "", value, "SBATCH_DELAY_BOOT"),
        ("dependency", "d", value),
        ("distribution", "m", value, "SBATCH_DISTRIBUTION"),
        ("error", "e", value, "SBATCH_ERROR"),
        ("exclude", "x", value),
        ("exclusive", "", optional, "SBATCH_EXCLUSIVE"),
        ("export", "", value, "SBATCH_EXPORT"),
        ("export-file", "", value),
        ("extra", "", value),  # 23.02
        ("extra-node-info", "B", value),
        ("get-user-env", "", optional, "SBATCH_GET_USER_ENV"),
        ("gid", "", value),
        ("gpu-bind", "", value, "SBATCH_GPU_BIND"),
        ("gpu-freq", "", value, "SBATCH_GPU_FREQ"),
        ("gpus", "G", value, "SBATCH_GPUS"),
        ("gpus-per-node", "", value, "SBATCH_GPUS_PER_NODE"),
        ("gpus-per-socket", "", value),
        ("gpus-per-task", "", value, "SBATCH_GPUS_PER_TASK"),
        ("gres", "", value, "SBATCH_GRES"),
        ("gres-flags", "", value, "SBATCH_GRES_FLAGS"),
        ("help", "h", nothing),
        ("hint", "", value, "SBATCH_HINT", "SLURM_HINT"),
        ("hold", "H", nothing),
        ("ignore-pbs", "", nothing, "SBATCH_IGNORE_PBS"),
        ("input", "i", value, "SBATCH_INPUT"),
        ("job-name", "J", value, "SBATCH_JOB_NAME"),
        ("kill-on-invalid-dep", "", value),
        ("licenses", "L", value),
        ("mail-type", "", value),
        ("mail-user", "", value),
        ("mcs-label", "", value),
        ("mem", "", value, "SBATCH_MEM_PER_NODE"),
        ("mem-bind", "", value, "SBATCH_MEM_BIND"),
        ("mem-per-cpu", "", value, "SBATCH_MEM_PER_CPU"),
        ("mem-per-gpu", "", value, "SBATCH_MEM_PER_GPU"),
        ("mem-update", "", value),  # 26.05
        ("mincpus", "", value),
        ("network", "", value, "SBATCH_NETWORK"),
        ("nice", "", optional),
        ("no-kill", "k", optional, "SBATCH_NO_KILL"),
        ("no-requeue", "", nothing, "SBATCH_NO_REQUEUE"),
        ("nodefile", "F", value),
        ("nodelist", "w", value),
        ("nodes", "N", value),
        ("ntasks", "n", value),
        ("ntasks-per-core", "", value),
        ("ntasks-per-gpu", "", value),
        ("ntasks-per-node", "", value),
        ("ntasks-per-socket", "", value),
        ("ntasks-per-tres", "", value),
        ("oom-kill-step", "", optional, "SBATCH_OOM_KILL_STEP"),  # 24.05
        ("open-mode", "", value, "SBATCH_OPEN_MODE"),
        ("output", "o", value, "SBATCH_OUTPUT"),
        ("overcommit", "O", nothing, "SBATCH_OVERCOMMIT"),
        ("oversubscribe", "s", nothing),
        ("parsable", "", nothing),
        ("partition", "p", value, "SBATCH_PARTITION"),
        ("power", "", value, "SBATCH_POWER"),
        ("prefer", "", value),
        ("priority", "", value),
        ("profile", "", value, "SBATCH_PROFILE"),
        ("propagate", "", optional),
        ("qos", "q", value, "SBATCH_QOS"),
        ("quiet", "Q", nothing),
        ("reboot", "", nothing),
        ("requeue", "", optional, "SBATCH_REQUEUE"),  # takes =expedite from 25.11
        ("reservation", "", value, "SBATCH_RESERVATION"),
        ("resources", "", value),  # 25.05
        ("resv-ports", "", optional),  # 24.05
        ("segment", "", value, "SBATCH_SEGMENT_SIZE"),  # 24.05
        ("signal", "", value, "SBATCH_SIGNAL"),
        ("sockets-per-node", "", value),
        ("spread-job", "", nothing, "SBATCH_SPREAD_JOB"),
        ("spread-segments", "", nothing),  # 25.11
        ("stepmgr", "", nothing, "SBATCH_STEPMGR"),  # 24.05
        ("switches", "", value),
        ("tasks-per-node", "", value),
        ("test-only", "", nothing),
        ("thread-spec", "", value, "SBATCH_THREAD_SPEC"),
        ("threads-per-core", "", value, "SBATCH_THREADS_PER_CORE"),
        ("time", "t", value, "SBATCH_TIMELIMIT"),
        ("time-min", "", value),
        ("tmp", "", value),
        ("tres-bind", "", value, "SBATCH_TRES_BIND"),  # 23.11
        ("tres-per-task", "", value, "SBATCH_TRES_PER_TASK"),  # 23.11
        ("uid", "", value),
        ("usage", "", nothing),
        ("use-min-nodes", "", nothing, "SBATCH_USE_MIN_NODES"),
        ("verbose", "v", nothing, "SBATCH_DEBUG"),
        ("version", "V", nothing),
        ("wait", "W", nothing, "SBATCH_WAIT"),
        ("wait-all-nodes", "", value, "SBATCH_WAIT_ALL_NODES"),
        ("wckey", "", value, "SBATCH_WCKEY"),
        ("wrap", "", value),
    ):
        yield SbatchOption(name, takes, letter, tuple(variables))


SBATCH_OPTIONS: tuple[SbatchOption, ...] = tuple(_rows())
PYXIS_OPTIONS: tuple[SbatchOption, ...] = (
    *(SbatchOption(f"container-{name}") for name in ("image", "mounts", "workdir", "name", "save", "env")),
    *(
        SbatchOption(f"{no}container-{name}", Takes.NOTHING)
        for name in ("mount-home", "remap-root", "entrypoint")
        for no in ("", "no-")
    ),
    *(
        SbatchOption(f"container-{name}", Takes.NOTHING)
        for name in ("entrypoint-log", "writable", "readonly")
    ),
)
"""What the plug-in pyxis adds to sbatch, to run jobs in containers (read in its source of 2025)."""
_KNOWN = SBATCH_OPTIONS + PYXIS_OPTIONS
_ALIASES = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}
# The first option of a letter counts.
_BY_LETTER = {option.letter: option for option in reversed(SBATCH_OPTIONS) if option.letter}


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOption:
    """An option as it was written. `name` is None for one that is not (unambiguously) in the table.

    `words` are the words it was written with. With several letters in one word (`-HvN2`) the first option
    has the word and the others have none, so that joining all `words` restores what was parsed.
    """

    name: str | None
    value: str | None
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedWords:
    """A parsed command line: the options, and the `rest` from the first other word (the script) on.

    `after_dashes` is set when a `--` separates the two.
    """

    options: tuple[GivenOption, ...]
    rest: tuple[str, ...]
    after_dashes: bool = False


def parse_words(words: Sequence[str], *, exact: Sequence[SbatchOption] = ()) -> ParsedWords:
    """Parse `words` as getopt_long does for sbatch: options up to the first other word, or to `--`.

    `exact` adds options that cannot be abbreviated. Raises `UsageError` when the last option lacks its value.
    """
    options: list[GivenOption] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            return ParsedWords(options=tuple(options), rest=tuple(words[position + 1 :]), after_dashes=True)
        if not word.startswith("-") or word == "-":
            break
        following = words[position + 1] if position + 1 < len(words) else None
        found = [_long(word, following, exact)] if word.startswith("--") else _letters(word, following)
        options.extend(found)
        position += len(found[0].words)
    return ParsedWords(options=tuple(options), rest=tuple(words[position:]))


def _long(word: str, following: str | None, exact: Sequence[SbatchOption]) -> GivenOption:
    written, has_value, value = word[2:].partition("=")
    name, takes = _resolve(written, exact)
    if has_value:
        return GivenOption(name=name, value=value, words=(word,))
    if takes is Takes.VALUE:
        if following is None:
            raise UsageError(f"option --{name or written} needs a value")
        return GivenOption(name=name, value=following, words=(word, following))
    return GivenOption(name=name, value=None, words=(word,))


def _resolve(written: str, exact: Sequence[SbatchOption]) -> tuple[str | None, Takes]:
    """Find a long option by its name or an abbreviation of it.

    An ambiguous abbreviation has no name here; it takes a value only if all options that fit do. sbatch,
    whose own table may be smaller, decides what it means.
    """
    for option in (*exact, *_KNOWN):
        if option.name == written:
            return _ALIASES.get(option.name, option.name), option.takes
    fitting = [option for option in _KNOWN if option.name.startswith(written)] if written else []
    if len(fitting) == 1:
        return _ALIASES.get(fitting[0].name, fitting[0].name), fitting[0].takes
    takes = {option.takes for option in fitting}
    return None, takes.pop() if len(takes) == 1 else Takes.NOTHING


def is_abbreviation(written: str) -> bool:
    """Whether `written` abbreviates one or several of sbatch's options."""
    return any(option.name.startswith(written) for option in _KNOWN)


def unknown_option(parsed: ParsedWords) -> str | None:
    """Return the last option if the first other word may be its value: a long one that no table has."""
    last = parsed.options[-1] if parsed.options else None
    if last is None or last.name is not None or not parsed.rest or parsed.after_dashes:
        return None
    word = last.words[0] if last.words else ""
    is_unknown = word.startswith("--") and last.value is None and not is_abbreviation(word[2:])
    return word if is_unknown else None


def parse_directives(words: Sequence[str]) -> tuple[GivenOption, ...]:
    """Parse the words of #SBATCH lines: there, a word after an unknown option can only be its value."""
    options: list[GivenOption] = []
    while True:
        parsed = parse_words(words)
        options.extend(parsed.options)
        if unknown_option(parsed) is None:
            return tuple(options)
        words = parsed.rest[1:]


def _letters(word: str, following: str | None) -> list[GivenOption]:
    """Parse a word of one-letter options; the first with a value takes the rest of the word, or the next."""
    found: list[tuple[str | None, str | None]] = []
    words: tuple[str, ...] = (word,)
    for index, letter in enumerate(word[1:], start=1):
        option = _BY_LETTER.get(letter)
        takes = option.takes if option is not None else Takes.NOTHING
        value = word[index + 1 :] or None
        if takes is Takes.VALUE and value is None:
            if following is None:
                raise UsageError(f"option -{letter} needs a value")
            value = following
            words = (word, following)
        found.append(
            (option.name if option is not None else None, value if takes is not Takes.NOTHING else None)
        )
        if takes is not Takes.NOTHING:
            break
    return [
        GivenOption(name=name, value=value, words=words if place == 0 else ())
        for place, (name, value) in enumerate(found)
    ]
