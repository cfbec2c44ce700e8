"""`pollux config`: check the settings, print an example or a table of them, print the systemd unit."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    JsonOption,
    StoreOption,
    print_json,
    print_line,
    print_note,
    print_text,
    settings,
)
from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.config import Config

# Where systemd looks for programs.
_SYSTEMD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

app = typer.Typer(
    name="config",
    add_completion=False,
    help="Check settings, or print an example of them.",
    no_args_is_help=True,
    epilog="Examples: pollux config example > /etc/pollux/pollux.toml · pollux config check",
)


@app.command()
def check(
    as_json: JsonOption = False, config_file: ConfigOption = None, store_url: StoreOption = None
) -> None:
    """Read the settings as the daemon does; print each with where it was set, or the first error.

    Example: pollux config check --config /etc/pollux/pollux.toml
    """
    from pollux_slurm.daemon.service import settings_check
    from pollux_slurm.daemon.service.steering_files import CURE, who_else_steers
    from pollux_slurm.store.access.url import parse_store_url

    config = settings(config_file, store_url)
    settings_check.check(config)
    others = who_else_steers(config)
    if others is not None:
        print_note(f"pollux: {others}; {CURE}")
    url = None if config.store.url is None else str(parse_store_url(config.store.url))
    found = effective(config, url=url, url_from_flag=store_url is not None)
    if as_json:
        print_json({key: {"value": value, "from": origin} for key, value, origin in found})
        return
    for key, value, origin in found:
        shown = "all" if (key, value) == ("daemon.partitions", []) else _shown(value)
        print_line(f"{key} = {shown}  ({origin})")


@app.command()
def example() -> None:
    """Print a settings file with every key, its default and its meaning.

    Example: pollux config example > /etc/pollux/pollux.toml
    """
    from pollux_slurm.cli.site import settings_text

    print_text(settings_text.example())


@app.command()
def table() -> None:
    """Print a Markdown table of every key: default, bounds and meaning. docs/settings.md has it.

    Example: pollux config table
    """
    from pollux_slurm.cli.site import settings_text

    print_text(settings_text.table())


@app.command()
def unit() -> None:
    """Print a systemd unit for the daemon, with the path of this `pollux` if systemd would not find it.

    Example: pollux config unit > /etc/systemd/system/pollux-daemon.service
    """
    from pollux_slurm.resources import resource_dir

    text = (resource_dir("templates") / "pollux-daemon.service").read_text(encoding="utf-8")
    own = Path(sys.executable).with_name("pollux")
    if shutil.which("pollux", path=_SYSTEMD_PATH) is None and own.is_file():
        if not re.fullmatch(r"[A-Za-z0-9/._+-]+", str(own)):
            raise UsageError(
                f"{own}: a unit cannot contain this path; install pollux elsewhere, such as in /opt/pollux"
            )
        text = text.replace("ExecStart=/usr/bin/env pollux ", f"ExecStart={own} ")
        if own.parts[1:2] in (("home",), ("root",), ("tmp",)):
            print_note(f"pollux: the daemon cannot run {own}: the unit hides /home, /root and /tmp from it")
    print_text(text)


def effective(config: Config, *, url: str | None, url_from_flag: bool) -> list[tuple[str, Any, str]]:
    """Return (table.key, value, origin) of all settings, with the store's URL without its password."""
    found = []
    for name, origin in config.origins:
        section, key = name.split(".")
        value = getattr(getattr(config, section), key)
        if name == "store.url":
            value, origin = url, "--store" if url_from_flag else origin
        if isinstance(value, tuple) and value and isinstance(value[0], tuple):
            value = dict(value)
        found.append((name, list(value) if isinstance(value, tuple) else value, origin))
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:g}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return str(value)
