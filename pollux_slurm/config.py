"""Settings: a TOML file, `POLLUX_*` environment above it, flags above both. Frozen once read.

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


def _one_of(*choices: str) -> Any:
    """Return a text's field that may be one of `choices`, the first if it is not set."""
    return field(default=choices[0], metadata={"choices": choices})


def _from(default: float, least: float, most: float, *, below: bool = False) -> Any:
    """Return a number's field that may be from `least` to `most`, `below` it if so said."""
    return field(default=default, metadata={"least": least, "most": most, "below": below})


def _perhaps(least: float, most: float, default: float | None = None) -> Any:
    """Return a number's field that may be left out."""
    return field(default=default, metadata={"least": least, "most": most, "below": False})


def _table(least: float, most: float, *, everyone: bool = False) -> Any:
    """Return the field of a table of names with a number each; in some, `*` stands for `everyone` else."""
    return field(default=(), metadata={"least": least, "most": most, "below": False, "everyone": everyone})


# No wait is longer, in seconds: thirty days.
_LONGEST_S = 2_592_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where jobs and daemon meet. `url` is an SQLAlchemy URL; None means that no store is configured."""

    url: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfig:
    """How Slurm is reached. `bin_dir` holds the commands; None means that PATH does.

    With `backend` "pyslurm" the looks and commands around each move go through PySlurm.
    """

    backend: str = _one_of("commands", "pyslurm")
    bin_dir: str | None = None
    command_timeout_s: float = _from(30.0, 1.0, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """The daemon's rhythm and patience. Every wait of a reallocation has one of these time-outs.

    `jobs` says whose jobs it serves: everybody's ("all"), its own user's ("own"), or as its rights are.
    """

    interval_s: float = _from(60.0, 0.5, 86400.0)
    tick_s: float = _from(0.5, 0.05, 60.0)
    checkpoint_timeout_s: float = _from(300.0, 1.0, _LONGEST_S)
    requeue_timeout_s: float = _from(90.0, 1.0, _LONGEST_S)
    start_timeout_s: float = _from(120.0, 1.0, _LONGEST_S)
    first_report_timeout_s: float = _from(600.0, 1.0, _LONGEST_S)
    restart_delay_s: float = _from(30.0, 0.1, 86400.0)
    max_restart_delay_s: float = _from(300.0, 0.1, 86400.0)
    max_in_flight: int = _from(8, 1, 10**6)
    lease_ttl_s: float = _from(30.0, 1.0, 86400.0)
    pause_ttl_s: float = _from(900.0, 10.0, _LONGEST_S)
    watch_s: float = _from(10.0, 0.5, 86400.0)
    metrics_listen: str = "127.0.0.1:9748"
    partitions: tuple[str, ...] = ()
    jobs: str = field(default="auto", metadata={"choices": ("auto", "all", "own")})
    shadow: bool = False
    problems_dir: str | None = None
    problems_kept: int = _from(100, 1, 10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """What the daemon maximises, within which rules, and how it solves that: docs/policy.md.

    `between` says who has equal shares: many jobs of one user count as one.
    `yields_to_pending` makes room for waiting jobs that are not adaptive, when it is their turn;
    `kept_shares` is the part of each partition's GPUs that adaptive jobs leave to others.
    `pauses` lets running jobs be left without GPUs for a while; None: where the objective is made for it.
    The tables are (name, number) pairs, in the order of the file; in `account_limits` and `user_limits`,
    the name `*` stands for every account or user that is not named.
    """

    objective: str = _one_of("generalized-mean", "osdi21", "price-rank", "attained-work")
    between: str = _one_of("users", "accounts", "jobs")
    exponent: float = _from(-1.0, -20.0, 20.0)
    floor: float = _from(1e-3, 1e-9, 1.0)
    fair_share_gpus: int | None = _perhaps(1, 1024)
    penalty: str = _one_of("paper", "amortised")
    horizon_s: float = _from(600.0, 1.0, 1e12)
    solver: str = _one_of("exact", "genetic", "greedy")
    time_limit_s: float = _from(10.0, 0.001, 86400.0)
    seed: int = _from(0, 0, 2**63 - 1)
    max_wait_s: float | None = _perhaps(0.0, 1e12)
    hysteresis: float = _from(0.0, 0.0, 1.0, below=True)
    max_reallocations: int | None = _perhaps(0, 10**6)
    min_age_s: float = _from(0.0, 0.0, 1e12)
    min_remaining_s: float = _from(0.0, 0.0, 1e12)
    pauses: bool | None = None
    yields_to_pending: bool = True
    account_limits: tuple[tuple[str, int], ...] = _table(0, 10**6, everyone=True)
    user_limits: tuple[tuple[str, int], ...] = _table(0, 10**6, everyone=True)
    account_weights: tuple[tuple[str, float], ...] = _table(0.01, 100.0)
    user_weights: tuple[tuple[str, float], ...] = _table(0.01, 100.0)
    job_weights: tuple[tuple[str, float], ...] = _table(0.01, 100.0)
    gpu_speeds: tuple[tuple[str, float], ...] = _table(1e-6, 1e6)
    kept_shares: tuple[tuple[str, float], ...] = _table(0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The in-job agent's rhythm, and the throughput equation that it fits (a registered one's name).

    `keep_connection` is for a store behind a pooler: a job then stays connected between its calls.
    """

    report_interval_s: float = _from(30.0, 0.1, 3600.0)
    poll_interval_s: float = _from(2.0, 0.05, 600.0)
    keep_connection: bool = False
    epoch_end_wait_s: float = _from(60.0, 0.0, 86400.0)
    throughput_equation: str = "pollux"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatesConfig:
    """Where an admin's own templates are looked for before the packaged ones."""

    dir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings, with `path` the file they came from (None if there was none).

    `origins` tells, for each key as `table.key`, what set it: a file, a variable, or "default".
    """

    path: Path | None = None
    origins: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    store: StoreConfig = field(default_factory=StoreConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    daemon: DaemonConfig = field(default_factory=DaemonConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    templates: TemplatesConfig = field(default_factory=TemplatesConfig)

    def require_store_url(self) -> str:
        """Return the store's URL, or say how to set one."""
        if self.store.url is None:
            raise ConfigError(
                "no store is configured: set POLLUX_STORE_URL=sqlite:////path/to/pollux.db, or url under "
                f"[store] in {self.path or DEFAULT_PATH}"
            )
        return self.store.url


def load_config(environ: Mapping[str, str], *, path: Path | None = None) -> Config:
    """Read the settings that hold for `environ`.

    Raises `ConfigError` with the file and key for anything unknown, of a wrong type or out of range; a file
    that was named (by `path` or `POLLUX_CONFIG`) must exist, the default one need not.
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
    _refuse_mistyped(environ, {name.upper() for name in sections}, [name for name, _ in origins])
    if tables:
        unknown = sorted(tables)[0]
        raise ConfigError(f"{source.at(unknown)}: unknown table [{unknown}]; known: {', '.join(sections)}")
    return Config(path=file if file.is_file() else None, origins=tuple(origins), **sections)


# Where a line is not worth the search: each line above it is read again.
_MOST_LINES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The settings file and its text, to tell where in it something stands."""

    file: Path
    text: str = ""

    def at(self, *path: str) -> str:
        """Return `file, line 3` for the line where the key (or table) at `path` begins.

        The parser tells no places. But a text that is cut between two statements is whole, and within one it
        is not: the key's statement begins where the last whole text without the key ends.
        """
        lines = self.text.split("\n")
        begin = 1
        for end in range(1, min(len(lines), _MOST_LINES) + 1):
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


# How alike a variable must be to a setting's to be taken for a slip of the finger.
_ALIKE = 0.9


def _refuse_mistyped(environ: Mapping[str, str], sections: set[str], keys: list[str]) -> None:
    """Raise `ConfigError` for a variable that looks like a setting's but is none: it would do nothing."""
    known = ["POLLUX_" + key.replace(".", "_").upper() for key in keys]
    for name in sorted(environ):
        if not name.startswith("POLLUX_") or name in known or name == "POLLUX_CONFIG":
            continue
        alike = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
        section = name.split("_")[1]
        if not alike and section not in sections:
            continue
        nearest = alike or difflib.get_close_matches(name, known, n=1, cutoff=0.0)
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
    """Return the name of the entry of a table that the error is about, if it is about one."""
    names = value if isinstance(value, dict) else ()
    return next(((name,) for name in names if str(error).partition(": ")[0].endswith(f".{name}")), ())


def _convert(value: Any, hint: Any, where: str, rules: Mapping[str, Any], *, is_text: bool) -> Any:
    """Turn a TOML value or an environment text into the field's type, or say what was expected there."""
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
    except OverflowError:  # a whole number beyond any float
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
    """Return a table's (name, number) pairs; in the environment it is written `name=number,...`."""
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
        raise ConfigError(f"{where}: a name is empty or stands there twice: {', '.join(names)}")
    if "*" in names and not rules["everyone"]:
        raise ConfigError(
            f"{where}: * stands for all others in account_limits and user_limits only; give each name here"
        )
    return tuple(
        (name, _convert_number(number, hint, f"{where}.{name}", rules, is_text=is_text))
        for name, number in entries
    )


_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
