"""`pollux init`: four questions, and then settings, a store and, on one machine, a cluster to try."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pollux_slurm.cli.shared.completion import choices
from pollux_slurm.cli.shared.settings_and_store import (
    JsonOption,
    print_json,
    print_line,
    print_note,
    print_text,
)
from pollux_slurm.errors import ConfigError, PolluxError, SandboxError, StoreError, UsageError

if TYPE_CHECKING:
    from pollux_slurm.cli.site.first_settings import Answers, Surroundings, Users

Answer = TypeVar("Answer")

_FLAGS = {"users": "--for", "store": "--store", "checkpoints": "--checkpoints", "mode": "--shadow or --live"}


def init(
    users: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="WHOM",
            help="machine: this machine alone; own: your jobs on a cluster; cluster: everyone's jobs.",
            autocompletion=choices("machine", "own", "cluster"),
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="FILE|URL", help="A file for SQLite, or postgresql://HOST/DATABASE."),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where checkpoints go, ~ and %u allowed; submission: below each submission's directory.",
        ),
    ] = None,
    shadow: Annotated[
        bool | None,
        typer.Option("--shadow/--live", help="On a cluster: the daemon only records, or moves jobs."),
    ] = None,
    sandbox: Annotated[
        bool | None,
        typer.Option("--sandbox/--no-sandbox", help="On one machine: start a private Slurm cluster."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; take the defaults.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing settings file.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be made.")] = False,
    as_json: JsonOption = False,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="Write this settings file instead of the usual one.")
    ] = None,
) -> None:
    """Set pollux up by four questions: whose jobs, which store, where checkpoints go, how it starts.

    It writes the settings file, makes the store, and says what to type next. Each question has an option.
    Your own file is ~/.config/pollux/pollux.toml; with --for cluster root writes /etc/pollux/pollux.toml.

    Examples: pollux init
    · pollux init --yes --dry-run
    · pollux init --for machine --store ~/pollux.db --no-sandbox --yes
    """
    from pollux_slurm.cli.site import first_settings as first

    found = first.look_around(os.environ)
    asked = _Questions(yes=yes)
    whom = asked.answer(
        "users",
        users,
        "Whose jobs? machine (this machine alone), own (yours on a cluster), cluster (everyone's)",
        found.likely_users.value,
        _users,
    )
    file = first.settings_file(whom, os.environ, config_file)
    if file.exists() and not force:
        raise UsageError(f"{file} exists; to print it: pollux config check; to replace it: add --force")
    answers = _answers(
        asked, whom, found, os.environ, store=store, checkpoints=checkpoints, shadow=shadow, sandbox=sandbox
    )
    text = first.settings_text(answers)
    made: dict[str, Any] = {"settings_file": str(file), "dry_run": dry_run}
    made |= {"settings": _redacted(text), "notes": _notes(file), "store_made": False, "sandbox": None}
    if not dry_run:
        made["store_made"] = _make_store(answers, made["notes"])
        first.write_settings(file, text, whom)
        made["sandbox"] = _start_sandbox() if answers.starts_sandbox else None
    made["next"] = first.next_commands(
        answers,
        file=file,
        environ=os.environ,
        slurm_answers=found.cluster is not None,
        store_made=dry_run or made["store_made"],
    )
    if as_json:
        print_json(made | {"next": [command for command, _ in made["next"]]})
    else:
        _print(made, starts_sandbox=answers.starts_sandbox)


class _Questions:
    """Answers from options, defaults or a terminal; without a terminal, an error that names the options."""

    def __init__(self, *, yes: bool) -> None:
        self._takes_defaults, self._is_terminal = yes, sys.stdin.isatty()

    def answer(
        self,
        name: str,
        given: str | None,
        question: str,
        default: str | None,
        parse: Callable[[str], Answer],
    ) -> Answer:
        """Return the parsed option, default or answer; a wrong answer is asked for again."""
        if given is not None:
            return parse(given)
        if self._takes_defaults and default is not None:
            return parse(default)
        if self._takes_defaults:
            raise UsageError(f"{_FLAGS[name]} is needed here: there is no default for it")
        if not self._is_terminal:
            raise UsageError(
                "there is no terminal to ask on: give --for, --store, --checkpoints, and --shadow or --live, "
                "or --sandbox or --no-sandbox; or --yes for the defaults"
            )
        while True:
            try:
                return parse(str(typer.prompt(question, default=default, err=True)).strip())
            except (UsageError, ConfigError) as error:
                print_note(str(error))


def _users(given: str) -> Users:
    from pollux_slurm.cli.site.first_settings import Users

    if given not in {one.value for one in Users}:
        raise UsageError(f"--for {given}: write machine, own or cluster")
    return Users(given)


def _answers(
    asked: _Questions,
    users: Users,
    found: Surroundings,
    environ: Mapping[str, str],
    *,
    store: str | None,
    checkpoints: str | None,
    shadow: bool | None,
    sandbox: bool | None,
) -> Answers:
    from pollux_slurm.cli.site import first_settings as first

    here = users is first.Users.MACHINE
    if here and shadow:
        raise UsageError("--shadow is for a cluster: on this machine there is nothing to compare with")
    if sandbox and not here:
        raise UsageError("--sandbox is of --for machine")
    url = asked.answer(
        "store",
        store,
        "The store? A file (SQLite, one host) or postgresql://HOST/DATABASE",
        first.likely_store(users, found, environ),
        lambda given: first.store_url(given, users, found),
    )
    root = asked.answer(
        "checkpoints",
        checkpoints,
        "Where do checkpoints go? A folder that all nodes see, or submission (below each submission's)",
        first.SUBMISSION,
        lambda given: first.checkpoints_root(given, users),
    )
    if here:
        starts = bool(sandbox)
        if sandbox is None and found.cluster is None and _sandbox_can_start():
            starts = asked.answer("mode", None, "Start a private Slurm cluster now? yes or no", "yes", _yes)
        return first.Answers(
            users=users, store_url=url, checkpoints=root, shadow=False, starts_sandbox=starts
        )
    mode = asked.answer(
        "mode",
        None if shadow is None else ("shadow" if shadow else "live"),
        "How does the daemon start? shadow (decides and records only) or live (moves jobs)",
        "shadow" if users is first.Users.CLUSTER else "live",
        _is_shadow,
    )
    return first.Answers(users=users, store_url=url, checkpoints=root, shadow=mode, starts_sandbox=False)


def _yes(given: str) -> bool:
    if given.lower() not in ("y", "yes", "n", "no"):
        raise UsageError("write yes or no")
    return given.lower().startswith("y")


def _is_shadow(given: str) -> bool:
    if given not in ("shadow", "live"):
        raise UsageError("write shadow or live")
    return given == "shadow"


def _sandbox_can_start() -> bool:
    from pollux_slurm.sandbox.files import find_programs

    try:
        find_programs(os.environ)
    except SandboxError:
        return False
    return True


def _notes(file: Path) -> list[str]:
    """Return what keeps the file from being the whole truth."""
    from pollux_slurm.config import DEFAULT_PATH

    notes = []
    if os.environ.get("POLLUX_STORE_URL"):
        notes.append("POLLUX_STORE_URL is set in this shell, and overrides the store of the file")
    if file != DEFAULT_PATH and DEFAULT_PATH.exists():
        notes.append(f"the site has settings, which {file} replaces whole: {DEFAULT_PATH}")
    return notes


def _make_store(answers: Answers, notes: list[str]) -> bool:
    """Make the store's tables. On a cluster a failure is a note: root is not a superuser of PostgreSQL."""
    from pollux_slurm.cli.site.first_settings import Users
    from pollux_slurm.store.access.url import parse_store_url
    from pollux_slurm.store.maintenance.administration import init_store

    path = parse_store_url(answers.store_url).path
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        notes += init_store(answers.store_url).notes
    except OSError as error:
        raise StoreError(f"{path} cannot be made: {error.strerror}") from None
    except PolluxError as error:
        if answers.users is not Users.CLUSTER:
            raise
        notes.append(f"whether the store is made could not be seen: {error}")
        return False
    return True


def _start_sandbox() -> str:
    from pollux_slurm.cli.site.sandbox import sandbox_folder
    from pollux_slurm.sandbox.cluster import Sandbox
    from pollux_slurm.sandbox.files import NodeGroup

    # So small that two jobs have to share it.
    return str(Sandbox.up(sandbox_folder(None), groups=(NodeGroup(num_nodes=2),)).layout.dir)


def _redacted(text: str) -> str:
    from pollux_slurm.store.access.secrets_in_url import redacted

    return "".join(redacted(line) for line in text.splitlines(keepends=True))


def _print(made: Mapping[str, Any], *, starts_sandbox: bool) -> None:
    if made["dry_run"]:
        print_text(f"would write {made['settings_file']}:\n\n{made['settings']}\n")
        started = "the store, and a private Slurm cluster" if starts_sandbox else "the store"
        print_line(f"and make {started}. Then:")
    else:
        print_line(f"wrote {made['settings_file']}")
        if made["store_made"]:
            print_line("made the store")
        if made["sandbox"] is not None:
            print_line(f"started a private Slurm cluster in {made['sandbox']}")
        print_text("\nNext:\n")
    width = max(len(command) for command, _ in made["next"])
    for command, meaning in made["next"]:
        print_line(f"  {command:<{width}}  {meaning}")
    for note in made["notes"]:
        print_note(f"pollux: {note}")
