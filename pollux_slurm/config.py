"""Settings: a TOML file, overridden by `POLLUX_*` variables, overridden by command-line options.

One file is read: the one that `POLLUX_CONFIG` names, else the user's own, `~/.config/pollux/pollux.toml`,
else `/etc/pollux/pollux.toml`. The environment variable `POLLUX_<TABLE>_<KEY>` (such as `POLLUX_STORE_URL`)
overrides a table's key.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import stat
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pollux_slurm.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PATH = Path("/etc/pollux/pollux.toml")
# Stores and settings may name the solver `search` so.
OTHER_SOLVER_NAMES = types.MappingProxyType({"exact": "search"})


def own_path(environ: Mapping[str, str]) -> Path | None:
    """Return where the user's own settings file is, or would be; None for a user without a home."""
    config, home = environ.get("XDG_CONFIG_HOME"), environ.get("HOME")
    if not config and not home:
        return None
    return (Path(config) if config else Path(home or "") / ".config") / "pollux" / "pollux.toml"


def own_state_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder of what a user's own commands leave: a store, a sandbox."""
    return Path(environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "pollux"


def settings_path(environ: Mapping[str, str]) -> Path:
    """Return the file from which settings are read; the last of the three need not exist."""
    if environ.get("POLLUX_CONFIG"):
        return Path(environ["POLLUX_CONFIG"])
    own = own_path(environ)
    return own if own is not None and _is_trusted_file(own) else DEFAULT_PATH


def _is_trusted_file(path: Path) -> bool:
    """Return whether a file belongs to this user or root: `sudo` may keep the HOME of another user."""
    try:
        found = path.stat()
    except OSError:  # missing, or in a home that this user may not enter
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid())


def setting(meaning: str, default: Any, *, example: str | None = None, **rules: Any) -> Any:
    """Return a field that `pollux config example` and `table` describe by `meaning`.

    `example` is TOML for a key that has no default of its own.
    """
    return field(default=default, metadata={"meaning": meaning, "example": example, **rules})


def choice(meaning: str, *choices: str, others: Mapping[str, str] = types.MappingProxyType({})) -> Any:
    """Return a text field with these `choices`; the first is the default.

    `others` are accepted, too: other names of choices, which are not shown.
    """
    return setting(meaning, choices[0], choices=choices, others=others)


def number(
    meaning: str,
    default: float | None,
    least: float,
    most: float,
    *,
    below: bool = False,
    example: str | None = None,
) -> Any:
    """Return a number field from `least` to `most`; with `below`, `most` itself is not allowed."""
    return setting(meaning, default, example=example, least=least, most=most, below=below)


def number_table(meaning: str, example: str, least: float, most: float, *, everyone: bool = False) -> Any:
    """Return a field of (name, number) pairs; with `everyone`, the name `*` stands for all others."""
    return setting(meaning, (), example=example, least=least, most=most, below=False, everyone=everyone)


# The maximum of all time-outs: thirty days.
_LONGEST_S = 2_592_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The database of jobs and daemon. Without a `url`, no store is configured."""

    url: str | None = field(
        default=None,
        repr=False,
        metadata={
            "meaning": "The SQLAlchemy URL of the store: SQLite serves one host, PostgreSQL a cluster.",
            "example": '"postgresql://pollux@dbhost/pollux"',
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfig:
    """How to reach Slurm."""

    backend: str = choice(
        "With pyslurm, the daemon reads and moves jobs through PySlurm.", "commands", "pyslurm"
    )
    bin_dir: str | None = setting(
        "The folder of Slurm's commands. By default they are found in PATH.", None, example='"/opt/slurm/bin"'
    )
    command_timeout_s: float = number("Each of Slurm's commands may take this long.", 30.0, 1.0, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """The daemon's intervals and time-outs. Every step of a reallocation has one of these time-outs."""

    interval_s: float = number(
        "A round follows the last one after this time, or sooner after an event.", 60.0, 0.5, 86400.0
    )
    tick_s: float = number("A tick, which advances the open moves, comes this often.", 0.5, 0.05, 60.0)
    checkpoint_timeout_s: float = number(
        "A job must confirm a checkpoint within this time. One that does not is left alone for as long.",
        300.0,
        1.0,
        _LONGEST_S,
    )
    requeue_timeout_s: float = number(
        "Slurm may take this long to requeue a job; it must exceed Slurm's KillWait.", 90.0, 1.0, _LONGEST_S
    )
    start_timeout_s: float = number("A released job may take this long to start.", 120.0, 1.0, _LONGEST_S)
    first_report_timeout_s: float = number(
        "A started job must report its first step within this time.", 600.0, 1.0, _LONGEST_S
    )
    restart_delay_s: float = number(
        "A restart is assumed to cost this much until the job, or one of its kind, has measured it.",
        30.0,
        0.1,
        86400.0,
    )
    max_restart_delay_s: float = number(
        "A measured restart delay counts as at most this.", 300.0, 0.1, 86400.0
    )
    in_place_delay_s: float = number(
        "A move in place is assumed to take this long until the gained GPUs train.", 15.0, 0.1, 86400.0
    )
    max_in_flight: int = number("At most this many running jobs move at a time.", 8, 1, 10**6)
    lease_ttl_s: float = number(
        "Another daemon takes over after this long without a renewed lease.", 30.0, 1.0, 86400.0
    )
    pause_ttl_s: float = number(
        "A paused job starts by itself this long after its begin time was last renewed.",
        900.0,
        10.0,
        _LONGEST_S,
    )
    watch_s: float = number(
        "Slurm is read for events this often. Rounds without a report are this far apart.", 5.0, 0.5, 86400.0
    )
    metrics_listen: str = setting(
        "The address that serves /metrics and /health; off serves neither.", "127.0.0.1:9748"
    )
    partitions: tuple[str, ...] = setting(
        "Only jobs in these partitions are moved; an empty list means all.", ()
    )
    jobs: str = choice(
        "The daemon moves all jobs, its own user's (own), or those that its rights allow (auto).",
        "auto",
        "all",
        "own",
    )
    shadow: bool = setting("Decisions are made and recorded, but no job is touched.", False)
    problems_dir: str | None = setting(
        "The last rounds' problems are kept in this folder, for pollux replay.",
        None,
        example='"/var/lib/pollux/problems"',
    )
    problems_kept: int = number("This many problems are kept.", 100, 1, 10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """The objective, the rules and the solver of decisions: docs/policy.md.

    Tables are (name, number) pairs, in the order of the file.
    """

    objective: str = choice(
        "The objective that decisions maximise.", "generalized-mean", "osdi21", "price-rank", "attained-work"
    )
    between: str = choice(
        "Equal shares belong to users, to accounts or to jobs.", "users", "accounts", "jobs"
    )
    share_half_life: str | None = setting(
        "Past GPU hours lower users' shares, half after this long (1d or more). By default they do not.",
        None,
        example='"7d"',
    )
    exponent: float = number(
        "The power p of the mean of speedups: 1 is their sum, 0 and -1 the geometric and harmonic mean.",
        -1.0,
        -20.0,
        20.0,
    )
    floor: float = number("A job without GPUs counts with this speedup.", 1e-3, 1e-9, 1.0)
    fair_share_gpus: int | None = number(
        "The speedup is 1 on this many GPUs. By default it is all GPUs divided by all jobs.",
        None,
        1,
        1024,
        example="4",
    )
    penalty: str = choice(
        "The restart penalty spreads over the job's age (paper), or over horizon_s (amortised).",
        "paper",
        "amortised",
    )
    horizon_s: float = number("The amortised penalty spreads a restart over this time.", 600.0, 1.0, 1e12)
    solver: str = choice(
        "The way in which decisions are searched.", "search", "genetic", "greedy", others=OTHER_SOLVER_NAMES
    )
    time_limit_s: float = number(
        "A decision takes at most this long; the best one found by then is taken.", 10.0, 0.001, 86400.0
    )
    seed: int = number("The seed of all random choices.", 0, 0, 2**63 - 1)
    max_wait_s: float | None = number(
        "GPUs are reserved for a job that has waited this long. By default they are not.",
        None,
        0.0,
        1e12,
        example="3600.0",
    )
    hysteresis: float | None = number(
        "The part of its speedup that a move must gain. By default 0.1 with generalized-mean, where first "
        "restarts and growth in place are free of it.",
        None,
        0.0,
        1.0,
        below=True,
        example="0.05",
    )
    max_reallocations: int | None = number(
        "At most this many running jobs move in one round. By default all may.", None, 0, 10**6, example="20"
    )
    min_age_s: float = number(
        "For this long after a start a job neither grows nor moves elsewhere, as with its owner's --min-run.",
        0.0,
        0.0,
        1e12,
    )
    min_remaining_s: float = number(
        "Running jobs that will end sooner than this, by their declared epochs, are not moved.",
        0.0,
        0.0,
        1e12,
    )
    pauses: bool | None = setting(
        "Running jobs may be paused. By default they may with price-rank and attained-work.",
        None,
        example="true",
    )
    yields_to_pending: bool = setting(
        "Adaptive jobs make room for unmanaged jobs that are next in the queue.", True
    )
    account_limits: tuple[tuple[str, int], ...] = number_table(
        'The adaptive jobs of an account have at most this many GPUs in all; "*" is for each not named.',
        "vision = 64",
        0,
        10**6,
        everyone=True,
    )
    user_limits: tuple[tuple[str, int], ...] = number_table(
        "The adaptive jobs of a user have at most this many GPUs in all.",
        "ada = 8",
        0,
        10**6,
        everyone=True,
    )
    account_weights: tuple[tuple[str, float], ...] = number_table(
        "The weight of an account's jobs in the objective. A job's weight is the product of all three.",
        "vision = 2.0",
        0.01,
        100.0,
    )
    user_weights: tuple[tuple[str, float], ...] = number_table(
        "The weight of a user's jobs.", "ada = 1.5", 0.01, 100.0
    )
    job_weights: tuple[tuple[str, float], ...] = number_table(
        "The weight of a job, by its number.", "1234 = 4.0", 0.01, 100.0
    )
    gpu_speeds: tuple[tuple[str, float], ...] = number_table(
        "The relative speed of a GPU of each type, for jobs not yet measured on it.", "a100 = 5.2", 1e-6, 1e6
    )
    kept_shares: tuple[tuple[str, float], ...] = number_table(
        "Adaptive jobs leave this part of a partition's GPUs to others.", "main = 0.25", 0.0, 1.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KindsConfig:
    """What jobs of one kind tell each other: docs/policy.md#kinds."""

    shared_by: str = choice(
        "Jobs of one kind teach each other within a user, an account, or not at all.",
        "user",
        "account",
        "nobody",
    )
    expires_s: float = number(
        "Jobs that were submitted longer ago teach no others.", 90 * 86400.0, 60.0, 1e10
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesConfig:
    """How jobs move: docs/moves.md."""

    in_place: bool = setting("pollux sbatch submits every job so that it moves in place.", False)
    wait_allowance_s: float = number(
        "An anchor may last this much longer than its training.", 86400.0, 0.0, _LONGEST_S
    )
    anchor_partition: str | None = setting(
        "The partition of the anchors. By default it is that of their wings.", None, example='"cpu"'
    )
    anchor_memory: str = setting('The memory of an anchor; "" is the default of its partition.', "512M")
    keeps_places: bool = setting(
        "Jobs that move by requeue keep their place, by a reservation and a priority that last seconds.",
        True,
    )
    gpu_types_without_nvlink: tuple[str, ...] = setting(
        'A job may have several wings on a node with these GPU types; "*" means any type.', ()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What the agents of jobs do."""

    report_interval_s: float = number("A job reports this often.", 30.0, 0.1, 3600.0)
    poll_interval_s: float = number("A job asks for requests this often.", 2.0, 0.05, 600.0)
    keep_connection: bool = setting(
        "Jobs stay connected to the store. Use it only with a connection pooler before the store.", False
    )
    epoch_end_wait_s: float = number(
        "A move waits for an end of the epoch that is this near; at most half of checkpoint_timeout_s.",
        60.0,
        0.0,
        86400.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsConfig:
    """The checkpoints of a job."""

    root: str | None = setting(
        "Jobs that name no checkpoint directory get one here; ~ is the owner's home, %u the owner's name. "
        "By default it is pollux-checkpoints in the directory of the submission.",
        None,
        example='"/scratch/%u/checkpoints"',
    )
    keep: int = number(
        "A job keeps this many checkpoints on disk, and one more while it is written.", 2, 1, 1000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatesConfig:
    """Job scripts and pages."""

    dir: str | None = setting(
        "The folder of your own templates, which have the same file names.",
        None,
        example='"/etc/pollux/templates"',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings. `path` is the settings file, None if there is none.

    `origins` has, for each `table.key`, where it was set: a file, a variable, or "default".
    """

    path: Path | None = None
    origins: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    store: StoreConfig = field(default_factory=StoreConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    daemon: DaemonConfig = field(default_factory=DaemonConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    moves: MovesConfig = field(default_factory=MovesConfig)
    kinds: KindsConfig = field(default_factory=KindsConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    checkpoints: CheckpointsConfig = field(default_factory=CheckpointsConfig)
    templates: TemplatesConfig = field(default_factory=TemplatesConfig)

    def require_store_url(self) -> str:
        """Return the store's URL; raises `ConfigError` with how to set one."""
        if self.store.url is None:
            raise ConfigError(
                "no store is configured; to make one: pollux init. Or set POLLUX_STORE_URL="
                f"sqlite:////path/to/pollux.db, or url under [store] in {self.path or DEFAULT_PATH}"
            )
        return self.store.url


def known_sections() -> tuple[str, ...]:
    """Return the names of the tables of a settings file."""
    return tuple(entry.name for entry in dataclasses.fields(Config) if entry.name not in ("path", "origins"))


def load_config(environ: Mapping[str, str], *, path: Path | None = None) -> Config:
    """Read the settings file and the variables in `environ`.

    Raises `ConfigError` with file, line and key for anything unknown, of a wrong type or out of range. A file
    named by `path` or `POLLUX_CONFIG` must exist; the others need not.
    """
    is_named = path is not None or bool(environ.get("POLLUX_CONFIG"))
    file = path or settings_path(environ)
    tables: dict[str, Any] = {}
    source = TomlText(file=file)
    if file.is_file():
        source, tables = TomlText.read(file)
    elif is_named:
        raise ConfigError(f"{file}: no such configuration file")

    sections: dict[str, Any] = {}
    origins: list[tuple[str, str]] = []
    hints = typing.get_type_hints(Config)
    for section in known_sections():
        table = tables.pop(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{source.at(section)}: [{section}] must be a table")
        sections[section] = _read_section(hints[section], section, table, environ, source, origins)
    _refuse_misspelled_variables(environ, {name.upper() for name in sections}, [name for name, _ in origins])
    if tables:
        unknown = sorted(tables)[0]
        raise ConfigError(f"{source.at(unknown)}: unknown table [{unknown}]; known: {', '.join(sections)}")
    return Config(path=file if file.is_file() else None, origins=tuple(origins), **sections)


# In longer files no line is given: finding it parses the text above each line.
_MAX_LINES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TomlText:
    """A TOML file and its text, for error messages with line numbers."""

    file: Path
    text: str = ""

    @staticmethod
    def read(file: Path) -> tuple[TomlText, dict[str, Any]]:
        """Return the text of `file` and its tables. Raises `ConfigError`."""
        try:
            source = TomlText(file=file, text=file.read_text(encoding="utf-8"))
            return source, tomllib.loads(source.text)
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a mere ValueError
            raise ConfigError(f"{file}: not valid TOML: {error}") from None
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None

    def at(self, *path: str | int) -> str:
        """Return `file, line 3` for the line where the key (or table) at `path` begins; numbers are in lists.

        A path may be longer than the file's: `("policy", 0, "name")` also finds `policy = "sia"`.

        The parser gives no line numbers. But a text that ends between two statements is valid TOML, and one
        that ends within a statement is not. So the key begins after the longest valid text without the key.
        """
        lines = self.text.split("\n")
        begin = 1
        for end in range(1, min(len(lines), _MAX_LINES) + 1):
            try:
                found: Any = tomllib.loads("\n".join(lines[:end]))
            except (ValueError, RecursionError):
                continue
            for key in path:
                if isinstance(found, list):
                    found = found[key] if isinstance(key, int) and key < len(found) else None
                elif isinstance(found, dict):
                    found = found.get(key)
            if found is not None:
                return f"{self.file}, line {begin}"
            begin = end + 1
        return str(self.file)


# From this similarity to a setting's variable, an unknown variable is refused as misspelled.
_MIN_SIMILARITY = 0.9


def _refuse_misspelled_variables(environ: Mapping[str, str], sections: set[str], keys: list[str]) -> None:
    """Raise `ConfigError` for a variable that is similar to a setting's: it would have no effect."""
    known = ["POLLUX_" + key.replace(".", "_").upper() for key in keys]
    for name in sorted(environ):
        if not name.startswith("POLLUX_") or name in known or name == "POLLUX_CONFIG":
            continue
        similar = difflib.get_close_matches(name, known, n=1, cutoff=_MIN_SIMILARITY)
        section = name.split("_")[1]
        if not similar and section not in sections:
            continue
        nearest = similar or difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise ConfigError(
            f"${name}: there is no such setting; do you mean ${nearest[0]}? (pollux config check)"
        )


def _read_section(
    kind: type[Any],
    name: str,
    table: Mapping[str, Any],
    environ: Mapping[str, str],
    source: TomlText,
    origins: list[tuple[str, str]],
) -> Any:
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(table) - set(hints))
    if unknown:
        place = source.at(name, unknown[0])
        raise ConfigError(f"{place}: unknown key {name}.{unknown[0]}; known: {', '.join(hints)}")
    values: dict[str, Any] = {}
    for entry in dataclasses.fields(kind):
        key, hint = entry.name, hints[entry.name]
        variable = f"POLLUX_{name}_{key}".upper()
        origin = "default"
        if environ.get(variable):
            origin = f"${variable}"
            values[key] = convert(environ[variable], hint, origin, entry.metadata, is_text=True)
        elif key in table:
            origin = str(source.file)
            try:
                values[key] = convert(table[key], hint, f"{name}.{key}", entry.metadata, is_text=False)
            except ConfigError as error:
                raise ConfigError(f"{source.at(name, key, *_entry(table[key], error))}: {error}") from None
        origins.append((f"{name}.{key}", origin))
    return kind(**values)


def _entry(value: Any, error: ConfigError) -> tuple[str, ...]:
    """Return the name of the table's entry that the error is about, if any."""
    names = value if isinstance(value, dict) else ()
    return next(((name,) for name in names if str(error).partition(": ")[0].endswith(f".{name}")), ())


def convert(value: Any, hint: Any, where: str, rules: Mapping[str, Any], *, is_text: bool) -> Any:
    """Convert a TOML value or a variable's text to the field's type, or raise what was expected."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (kind for kind in typing.get_args(hint) if kind is not type(None))
    if hint is bool:
        if is_text and value.lower() in _TRUTH:
            return _TRUTH[value.lower()]
        if not is_text and isinstance(value, bool):
            return value
        raise ConfigError(f"{where}: expected true or false, not {value!r}")
    if hint in (int, float):
        return _convert_number(value, hint, where, rules, is_text=is_text)
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[0] is str:
        items = value.split(",") if is_text else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ConfigError(f"{where}: expected a list of texts, not {value!r}")
        return tuple(item.strip() for item in items if item.strip())
    if typing.get_origin(hint) is tuple:
        number = typing.get_args(typing.get_args(hint)[0])[1]
        return _convert_table(value, number, where, rules, is_text=is_text)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: expected a text, not {value!r}")
    value = rules.get("others", {}).get(value, value)
    if rules.get("choices") and value not in rules["choices"]:
        raise ConfigError(f"{where}: expected one of {', '.join(rules['choices'])}, not {value!r}")
    return value


def _convert_number(
    value: Any, hint: type[Any], where: str, rules: Mapping[str, Any], *, is_text: bool
) -> Any:
    try:
        number = hint(value) if is_text or type(value) in (int, hint) else None
    except (ValueError, OverflowError):
        number = None
    try:
        if number is None or not math.isfinite(number):
            number = math.nan
    except OverflowError:  # an integer beyond the range of floats
        number = math.nan
    least, most = rules["least"], rules["most"]
    if not least <= number <= most or (rules["below"] and number == most):
        kind = "a whole number" if hint is int else "a number"
        bounds = (
            f"of at least {least:g} and below {most:g}" if rules["below"] else f"from {least:g} to {most:g}"
        )
        raise ConfigError(f"{where}: expected {kind} {bounds}, not {value!r}")
    return number


def _convert_table(
    value: Any, hint: type[Any], where: str, rules: Mapping[str, Any], *, is_text: bool
) -> tuple[tuple[str, Any], ...]:
    """Return a table's (name, number) pairs; a variable has the form `name=number,...`."""
    if is_text:
        pairs = [item.rpartition("=") for item in value.split(",") if item.strip()]
        if not all(sign for _, sign, _ in pairs):
            raise ConfigError(f"{where}: expected name=number,name=number, not {value!r}")
        entries = [(name.strip(), number.strip()) for name, _, number in pairs]
    elif isinstance(value, dict):
        entries = list(value.items())
    else:
        raise ConfigError(f"{where}: expected a table of names with a number each, not {value!r}")
    names = [name for name, _ in entries]
    if len(set(names)) < len(names) or not all(names):
        raise ConfigError(f"{where}: a name is empty or occurs twice: {', '.join(names)}")
    if "*" in names and not rules["everyone"]:
        raise ConfigError(
            f"{where}: * stands for all others in account_limits and user_limits only; give each name here"
        )
    return tuple(
        (name, _convert_number(number, hint, f"{where}.{name}", rules, is_text=is_text))
        for name, number in entries
    )


_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
