"""Settings: a TOML file, `POLLUX_*` environment above it, flags above both. Frozen once read.

The file is `/etc/pollux/pollux.toml` unless `POLLUX_CONFIG` names another. The environment variable
`POLLUX_<TABLE>_<KEY>` (such as `POLLUX_STORE_URL`) overrides a table's key.
"""

from __future__ import annotations

import dataclasses
import math
import sys
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where jobs and daemon meet. `url` is an SQLAlchemy URL; None means that no store is configured."""

    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfig:
    """How Slurm is reached. `bin_dir` holds the commands; None means that PATH does."""

    bin_dir: str | None = None
    command_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """The daemon's rhythm and patience. Every wait of a reallocation has one of these time-outs."""

    interval_s: float = 60.0
    tick_s: float = 0.5
    checkpoint_timeout_s: float = 300.0
    requeue_timeout_s: float = 90.0
    start_timeout_s: float = 120.0
    first_report_timeout_s: float = 600.0
    restart_delay_s: float = 30.0
    max_in_flight: int = 8
    lease_ttl_s: float = 30.0
    partitions: tuple[str, ...] = ()
    shadow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The in-job agent's rhythm, and the throughput equation that it fits (a registered one's name)."""

    report_interval_s: float = 30.0
    poll_interval_s: float = 2.0
    throughput_equation: str = "pollux"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatesConfig:
    """Where an admin's own templates are looked for before the packaged ones."""

    dir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings, with `path` the file they came from (None if there was none)."""

    path: Path | None = None
    store: StoreConfig = field(default_factory=StoreConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    daemon: DaemonConfig = field(default_factory=DaemonConfig)
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
    if file.is_file():
        try:
            tables = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: not valid TOML: {error}") from None
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    elif named is not None:
        raise ConfigError(f"{file}: no such configuration file")

    sections: dict[str, Any] = {}
    for section in dataclasses.fields(Config):
        if section.name == "path":
            continue
        kind = typing.get_type_hints(Config)[section.name]
        table = tables.pop(section.name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: [{section.name}] must be a table")
        sections[section.name] = _read_section(kind, section.name, table, environ, file)
    if tables:
        raise ConfigError(f"{file}: unknown table [{sorted(tables)[0]}]; known: {', '.join(sections)}")
    return Config(path=file if file.is_file() else None, **sections)


def _read_section(
    kind: type[Any], name: str, table: Mapping[str, Any], environ: Mapping[str, str], file: Path
) -> Any:
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(table) - set(hints))
    if unknown:
        raise ConfigError(f"{file}: unknown key {name}.{unknown[0]}; known: {', '.join(hints)}")
    values: dict[str, Any] = {}
    for key, hint in hints.items():
        variable = f"POLLUX_{name}_{key}".upper()
        if environ.get(variable):
            values[key] = _convert(environ[variable], hint, f"${variable}", is_text=True)
        elif key in table:
            values[key] = _convert(table[key], hint, f"{file}: {name}.{key}", is_text=False)
    return kind(**values)


def _convert(value: Any, hint: Any, where: str, *, is_text: bool) -> Any:
    """Turn a TOML value or an environment text into the field's type, or say what was expected there."""
    if hint is bool:
        if is_text and value.lower() in _TRUTH:
            return _TRUTH[value.lower()]
        if not is_text and isinstance(value, bool):
            return value
        raise ConfigError(f"{where}: expected true or false, not {value!r}")
    if hint in (int, float):
        try:
            number = hint(value) if is_text or type(value) in (int, hint) else None
        except ValueError:
            number = None
        if number is None or not math.isfinite(number) or number <= 0:
            raise ConfigError(f"{where}: expected a positive {hint.__name__}, not {value!r}")
        return number
    if typing.get_origin(hint) is tuple:
        items = value.split(",") if is_text else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ConfigError(f"{where}: expected a list of texts, not {value!r}")
        return tuple(item.strip() for item in items if item.strip())
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: expected a text, not {value!r}")
    return value


_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
