"""Settings: a TOML file, overridden by `POLLUX_*` variables, overridden by command-line options.

The file is `/etc/pollux/pollux.toml` unless `POLLUX_CONFIG` names another. The environment variable
`POLLUX_<TABLE>_<KEY>` (such as `POLLUX_STORE_URL`) overrides a table's key.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
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


def _choice(*choices: str) -> Any:
    """Return a text field with these `choices`; the first is the default."""
    return field(default=choices[0], metadata={"choices": choices})


def _number(default: float, least: float, most: float, *, below: bool = False) -> Any:
    """Return a number field from `least` to `most`; with `below`, `most` itself is not allowed."""
    return field(default=default, metadata={"least": least, "most": most, "below": below})


def _optional_number(least: float, most: float, default: float | None = None) -> Any:
    """Return a number field that may be None."""
    return field(default=default, metadata={"least": least, "most": most, "below": False})


def _number_table(least: float, most: float, *, everyone: bool = False) -> Any:
    """Return a field of (name, number) pairs; with `everyone`, the name `*` stands for all others."""
    return field(default=(), metadata={"least": least, "most": most, "below": False, "everyone": everyone})


# The maximum of all time-outs: thirty days.
_LONGEST_S = 2_592_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The database of jobs and daemon. `url` is an SQLAlchemy URL; None: no store is configured."""

    url: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfig:
    """How to reach Slurm. `bin_dir` contains its commands; None: they are in PATH.

    With `backend` "pyslurm", reads and commands of each move use PySlurm.
    """

    backend: str = _choice("commands", "pyslurm")
    bin_dir: str | None = None
    command_timeout_s: float = _number(30.0, 1.0, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """The daemon's intervals and time-outs. Every step of a reallocation has one of these time-outs.

    `jobs` selects the jobs that it moves: all users' ("all"), its own user's ("own"), or what its rights
    allow ("auto").
    """

    interval_s: float = _number(60.0, 0.5, 86400.0)
    tick_s: float = _number(0.5, 0.05, 60.0)
    checkpoint_timeout_s: float = _number(300.0, 1.0, _LONGEST_S)
    requeue_timeout_s: float = _number(90.0, 1.0, _LONGEST_S)
    start_timeout_s: float = _number(120.0, 1.0, _LONGEST_S)
    first_report_timeout_s: float = _number(600.0, 1.0, _LONGEST_S)
    restart_delay_s: float = _number(30.0, 0.1, 86400.0)
    max_restart_delay_s: float = _number(300.0, 0.1, 86400.0)
    in_place_delay_s: float = _number(15.0, 0.1, 86400.0)
    max_in_flight: int = _number(8, 1, 10**6)
    lease_ttl_s: float = _number(30.0, 1.0, 86400.0)
    pause_ttl_s: float = _number(900.0, 10.0, _LONGEST_S)
    watch_s: float = _number(10.0, 0.5, 86400.0)
    metrics_listen: str = "127.0.0.1:9748"
    partitions: tuple[str, ...] = ()
    jobs: str = field(default="auto", metadata={"choices": ("auto", "all", "own")})
    shadow: bool = False
    problems_dir: str | None = None
    problems_kept: int = _number(100, 1, 10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """The objective, the rules and the solver of decisions: docs/policy.md.

    `between` selects what has equal shares: users, accounts or jobs. `yields_to_pending` makes room for
    unmanaged jobs when it is their turn. `kept_shares` is the part of each partition's GPUs that adaptive
    jobs leave to others. `pauses` allows pausing running jobs; None: with the objectives that are made for
    it. Tables are (name, number) pairs, in the order of the file. In `account_limits` and `user_limits`, the
    name `*` stands for every account or user that is not named.
    """

    objective: str = _choice("generalized-mean", "osdi21", "price-rank", "attained-work")
    between: str = _choice("users", "accounts", "jobs")
    exponent: float = _number(-1.0, -20.0, 20.0)
    floor: float = _number(1e-3, 1e-9, 1.0)
    fair_share_gpus: int | None = _optional_number(1, 1024)
    penalty: str = _choice("paper", "amortised")
    horizon_s: float = _number(600.0, 1.0, 1e12)
    solver: str = _choice("exact", "genetic", "greedy")
    time_limit_s: float = _number(10.0, 0.001, 86400.0)
    seed: int = _number(0, 0, 2**63 - 1)
    max_wait_s: float | None = _optional_number(0.0, 1e12)
    hysteresis: float = _number(0.0, 0.0, 1.0, below=True)
    max_reallocations: int | None = _optional_number(0, 10**6)
    min_age_s: float = _number(0.0, 0.0, 1e12)
    min_remaining_s: float = _number(0.0, 0.0, 1e12)
    pauses: bool | None = None
    yields_to_pending: bool = True
    account_limits: tuple[tuple[str, int], ...] = _number_table(0, 10**6, everyone=True)
    user_limits: tuple[tuple[str, int], ...] = _number_table(0, 10**6, everyone=True)
    account_weights: tuple[tuple[str, float], ...] = _number_table(0.01, 100.0)
    user_weights: tuple[tuple[str, float], ...] = _number_table(0.01, 100.0)
    job_weights: tuple[tuple[str, float], ...] = _number_table(0.01, 100.0)
    gpu_speeds: tuple[tuple[str, float], ...] = _number_table(1e-6, 1e6)
    kept_shares: tuple[tuple[str, float], ...] = _number_table(0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesConfig:
    """Moves in place: docs/moves.md.

    With `in_place`, `pollux sbatch` submits every job so that it moves in place. The anchor of such a job has
    `wait_allowance_s` more time than its training, `anchor_memory`, and stands in `anchor_partition`; None:
    in that of its wings. On nodes with `gpu_types_without_nvlink`, a job may have several wings; `*` stands
    for every type.
    """

    in_place: bool = False
    wait_allowance_s: float = _number(86400.0, 0.0, _LONGEST_S)
    anchor_partition: str | None = None
    anchor_memory: str = "512M"
    gpu_types_without_nvlink: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The agent's intervals, and the name of the throughput equation that it fits.

    `keep_connection` is for a store behind a connection pooler: jobs stay connected between their calls.
    """

    report_interval_s: float = _number(30.0, 0.1, 3600.0)
    poll_interval_s: float = _number(2.0, 0.05, 600.0)
    keep_connection: bool = False
    epoch_end_wait_s: float = _number(60.0, 0.0, 86400.0)
    throughput_equation: str = "pollux"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsConfig:
    """How many checkpoints of a job are kept on disk; while one is written, there is one more."""

    keep: int = _number(2, 1, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatesConfig:
    """`dir` contains an admin's own templates, which replace the packaged ones of the same name."""

    dir: str | None = None


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
    agent: AgentConfig = field(default_factory=AgentConfig)
    checkpoints: CheckpointsConfig = field(default_factory=CheckpointsConfig)
    templates: TemplatesConfig = field(default_factory=TemplatesConfig)

    def require_store_url(self) -> str:
        """Return the store's URL; raises `ConfigError` with how to set one."""
        if self.store.url is None:
            raise ConfigError(
                "no store is configured: set POLLUX_STORE_URL=sqlite:////path/to/pollux.db, or url under "
                f"[store] in {self.path or DEFAULT_PATH}"
            )
        return self.store.url


def load_config(environ: Mapping[str, str], *, path: Path | None = None) -> Config:
    """Read the settings file and the variables in `environ`.

    Raises `ConfigError` with file, line and key for anything unknown, of a wrong type or out of range. A file
    named by `path` or `POLLUX_CONFIG` must exist; the default one need not.
    """
    named = path or (Path(environ["POLLUX_CONFIG"]) if environ.get("POLLUX_CONFIG") else None)
    file = named or DEFAULT_PATH
    tables: dict[str, Any] = {}
    source = _Source(file=file)
    if file.is_file():
        try:
            source = _Source(file=file, text=file.read_text(encoding="utf-8"))
            tables = tomllib.loads(source.text)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: not valid TOML: {error}") from None
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    elif named is not None:
        raise ConfigError(f"{file}: no such configuration file")

    sections: dict[str, Any] = {}
    origins: list[tuple[str, str]] = []
    for section in dataclasses.fields(Config):
        if section.name in ("path", "origins"):
            continue
        kind = typing.get_type_hints(Config)[section.name]
        table = tables.pop(section.name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{source.at(section.name)}: [{section.name}] must be a table")
        sections[section.name] = _read_section(kind, section.name, table, environ, source, origins)
    _refuse_misspelled_variables(environ, {name.upper() for name in sections}, [name for name, _ in origins])
    if tables:
        unknown = sorted(tables)[0]
        raise ConfigError(f"{source.at(unknown)}: unknown table [{unknown}]; known: {', '.join(sections)}")
    return Config(path=file if file.is_file() else None, origins=tuple(origins), **sections)


# In longer files no line is given: finding it parses the text above each line.
_MAX_LINES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The settings file and its text, for error messages with line numbers."""

    file: Path
    text: str = ""

    def at(self, *path: str) -> str:
        """Return `file, line 3` for the line where the key (or table) at `path` begins.

        The parser gives no line numbers. But a text that ends between two statements is valid TOML, and one
        that ends within a statement is not. So the key begins after the longest valid text without the key.
        """
        lines = self.text.split("\n")
        begin = 1
        for end in range(1, min(len(lines), _MAX_LINES) + 1):
            try:
                found: Any = tomllib.loads("\n".join(lines[:end]))
            except tomllib.TOMLDecodeError:
                continue
            for key in path:
                found = found.get(key) if isinstance(found, dict) else None
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
    source: _Source,
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
            values[key] = _convert(environ[variable], hint, origin, entry.metadata, is_text=True)
        elif key in table:
            origin = str(source.file)
            try:
                values[key] = _convert(table[key], hint, f"{name}.{key}", entry.metadata, is_text=False)
            except ConfigError as error:
                raise ConfigError(f"{source.at(name, key, *_entry(table[key], error))}: {error}") from None
        origins.append((f"{name}.{key}", origin))
    return kind(**values)


def _entry(value: Any, error: ConfigError) -> tuple[str, ...]:
    """Return the name of the table's entry that the error is about, if any."""
    names = value if isinstance(value, dict) else ()
    return next(((name,) for name in names if str(error).partition(": ")[0].endswith(f".{name}")), ())


def _convert(value: Any, hint: Any, where: str, rules: Mapping[str, Any], *, is_text: bool) -> Any:
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
