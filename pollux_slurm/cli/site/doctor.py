"""`pollux doctor`: check the settings, the store, Slurm and nodes."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    JsonOption,
    StoreOption,
    opened_store,
    print_json,
    print_line,
    settings,
)
from pollux_slurm.errors import PolluxError, UnknownJobError, UsageError

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.daemon.doctor.findings import Finding
    from pollux_slurm.daemon.doctor.node_answers import SharedFolder
    from pollux_slurm.model import ClusterSnapshot
    from pollux_slurm.slurm.client import SlurmClient
    from pollux_slurm.store.contract.interface import DaemonStatus

FromNodesOption = Annotated[
    int,
    typer.Option(
        "--from-nodes",
        metavar="N",
        min=0,
        max=1000,
        help="Also run a short job on N nodes with free resources.",
    ),
]
FoldersOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--folder", metavar="DIR", help="With --from-nodes: where jobs keep checkpoints; repeatable."
    ),
]
ProbeOption = Annotated[list[str] | None, typer.Option("--probe", hidden=True)]


def doctor(
    from_nodes: FromNodesOption = 0,
    folders: FoldersOption = None,
    probe: ProbeOption = None,
    as_json: JsonOption = False,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Check settings, store and Slurm for problems, and print what to change.

    With --from-nodes it also runs a job of a second on nodes. It checks whether they reach the store, share
    the checkpoint folders, and have the right time. Exit code 1 if something must change before the daemon
    runs.

    Examples: pollux doctor --config /etc/pollux/pollux.toml
    · pollux doctor --from-nodes 4 --folder /scratch/checkpoints
    """
    from pollux_slurm.daemon.doctor.findings import Verdict

    if probe is not None:
        print_line(_probe_result(settings(config_file, store_url), probe))
        return
    if folders and not from_nodes:
        raise UsageError("--folder is checked from nodes: add their number, such as --from-nodes 4")
    findings = list(
        examined(
            settings(config_file, store_url),
            clock.now,
            from_nodes=from_nodes,
            folders=folders or (),
        )
    )
    if as_json:
        print_json(
            [{"name": f.name, "verdict": f.verdict.value, "text": f.text, "cure": f.cure} for f in findings]
        )
    else:
        for finding in findings:
            print_line(f"{finding.verdict.value:<4} {finding.name}: {finding.text}")
            if finding.cure:
                print_line(f"       → {finding.cure}")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(1)


def examined(
    config: Config, clock: Callable[[], datetime], *, from_nodes: int = 0, folders: Sequence[Path] = ()
) -> Iterator[Finding]:
    """Run all checks and yield their findings; what cannot be read is a finding as well.

    A probe runs on `from_nodes` nodes and also checks the `folders`.
    """
    from pollux_slurm.daemon.doctor.findings import examine_daemon, examine_jobs, examine_store, examine_wings
    from pollux_slurm.now.jobs import jobs_now
    from pollux_slurm.store.access.url import parse_store_url

    yield _settings_finding(config)
    records, seen, site = None, None, None
    try:
        with opened_store(config) as store:
            records, seen = store.jobs.active(), store.lease.daemon_status()
    except PolluxError as error:
        yield _failed("store", error)
    try:
        site = _SlurmSite.read(config, clock)
    except PolluxError as error:
        yield _failed("Slurm", error)
    snapshot = None if site is None else site.snapshot
    if records is not None:
        nodes = () if snapshot is None else snapshot.nodes
        shown_url = str(parse_store_url(config.require_store_url()))
        yield examine_store(shown_url, len(records), nodes, host=socket.gethostname())
    if site is not None:
        yield from _site_findings(config, site, seen, clock)
    if records is not None and seen is not None:
        yield examine_daemon(seen, jobs_now(records, snapshot), clock())
    if snapshot is not None and records is not None:
        yield from examine_jobs(snapshot, records)
        yield examine_wings(snapshot)
    if snapshot is not None and from_nodes:
        try:
            yield from _nodes_asked(config, snapshot, from_nodes, folders)
        except PolluxError as error:
            yield _failed("nodes", error)


def _failed(name: str, error: PolluxError) -> Finding:
    from pollux_slurm.daemon.doctor.findings import Finding, Verdict

    return Finding(name=name, verdict=Verdict.FAIL, text=str(error))


def _settings_finding(config: Config) -> Finding:
    from pollux_slurm.daemon.doctor.findings import Finding, Verdict
    from pollux_slurm.daemon.service import settings_check
    from pollux_slurm.daemon.service.steering_files import CURE, who_else_steers

    try:
        settings_check.check(config)
        source, others = str(config.path or "defaults and environment"), who_else_steers(config)
    except PolluxError as error:
        return _failed("settings", error)
    return Finding(
        name="settings",
        verdict=Verdict.OK if others is None else Verdict.WARN,
        text=source if others is None else f"{source}; {others}",
        cure="" if others is None else CURE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlurmSite:
    """What Slurm has answered; `skew_s` is how far its clock is ahead."""

    client: SlurmClient
    skew_s: float
    settings: Mapping[str, str]
    version: str
    snapshot: ClusterSnapshot

    @classmethod
    def read(cls, config: Config, clock: Callable[[], datetime]) -> _SlurmSite:
        """Ask Slurm. Raises `PolluxError`."""
        from pollux_slurm.slurm import connect

        client = connect(config.slurm, os.environ)
        before, there = clock(), client.controller_time()
        return cls(
            client=client,
            skew_s=(there - before).total_seconds(),
            settings=client.settings(),
            version=client.version(),
            snapshot=client.snapshot(),
        )


def _site_findings(
    config: Config, site: _SlurmSite, seen: DaemonStatus | None, clock: Callable[[], datetime]
) -> Iterator[Finding]:
    from pollux_slurm.cli.site.daemon import limits_of
    from pollux_slurm.daemon.doctor import findings

    yield from findings.examine_slurm(
        config,
        version=site.version,
        site=site.settings,
        snapshot=site.snapshot,
        clock_skew_s=site.skew_s,
        seen=seen,
    )
    yield _whose_jobs(config, site.client)
    limits = limits_of(config, site.client)()
    yield findings.examine_shares(config, limits)
    yield from findings.examine_objective(config)
    yield findings.examine_limits(limits)
    yield from _checkpoint_times(config, site.settings, clock())


def _whose_jobs(config: Config, slurm: SlurmClient) -> Finding:
    """Return a finding on whose jobs a daemon of this user would move."""
    from pollux_slurm.cli.site.daemon import scope_of, user_name
    from pollux_slurm.daemon.doctor.findings import Finding, Verdict

    try:
        own = scope_of(config, slurm)() is not None
    except PolluxError as error:
        return _failed("rights", error)
    whose = f"of {user_name()} only" if own else "of all users"
    return Finding(
        name="rights", verdict=Verdict.OK, text=f"as {user_name()}, a daemon moves the jobs {whose}"
    )


def _checkpoint_times(config: Config, site: Mapping[str, str], now: datetime) -> Iterator[Finding]:
    """Compare the duration of checkpoints in the last thirty days with KillWait."""
    from pollux_slurm.daemon.doctor.findings import seconds_of
    from pollux_slurm.daemon.doctor.node_answers import examine_checkpoints
    from pollux_slurm.store.reporting.queries import open_view_reader
    from pollux_slurm.store.reporting.view_rows import ReallocationEntry

    with contextlib.suppress(PolluxError), open_view_reader(config.require_store_url()) as reports:
        rows = reports.rows(ReallocationEntry, since=now - timedelta(days=30)).rows
        yield from examine_checkpoints(
            [row.checkpoint_s for row in rows if row.checkpoint_s is not None],
            kill_wait_s=seconds_of(site.get("KillWait")),
            checkpoint_timeout_s=config.daemon.checkpoint_timeout_s,
        )


def _nodes_asked(
    config: Config, snapshot: ClusterSnapshot, most: int, folders: Sequence[Path]
) -> Iterator[Finding]:
    from pollux_slurm.config import DEFAULT_PATH
    from pollux_slurm.daemon.doctor.node_answers import examine_nodes, examine_writers
    from pollux_slurm.slurm.commands.node_probe import nodes_with_free_cpu, run_on_nodes
    from pollux_slurm.slurm.connection import make_runner

    command = [sys.executable, "-m", "pollux_slurm", "doctor"]
    if config.path not in (None, DEFAULT_PATH):
        command += ["--config", str(config.path)]
    environ = dict(os.environ)
    # A node reads its own settings file. A URL may contain a password, so not on the command line.
    if config.store.url is not None and dict(config.origins).get("store.url") != str(config.path):
        environ["POLLUX_STORE_URL"] = config.store.url
    with contextlib.ExitStack() as stack:
        marks = [stack.enter_context(_marked(folder)) for folder in folders]
        command += [f"--probe={mark.word}:{mark.mark}" for mark in marks] or ["--probe="]
        answers = run_on_nodes(
            make_runner(config.slurm, environ),
            nodes_with_free_cpu(snapshot.nodes, most),
            command,
            clock=time.time,
        )
    yield from examine_nodes(answers, marks, num_nodes=len(snapshot.nodes))
    for folder in folders:
        yield examine_writers(folder)


@contextlib.contextmanager
def _marked(folder: Path) -> Iterator[SharedFolder]:
    """Write a file with a random word into a folder, while the probe runs on nodes."""
    from pollux_slurm.daemon.doctor.node_answers import SharedFolder

    word = secrets.token_hex(16)
    try:
        descriptor, name = tempfile.mkstemp(prefix=".pollux-doctor-", dir=folder.absolute())
    except OSError as error:
        raise UsageError(f"--folder {folder}: nothing can be written there: {error.strerror}") from None
    mark = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(word)
        yield SharedFolder(folder=folder, mark=mark, word=word)
    finally:
        mark.unlink(missing_ok=True)


def _probe_result(config: Config, marks: Sequence[str]) -> str:
    """Return what the probe finds on this node, for `node_answers.examine_nodes`."""
    from pollux_slurm.daemon.doctor.node_answers import probe
    from pollux_slurm.store import open_agent_store

    def reach_store() -> None:
        store = open_agent_store(config.require_store_url())
        try:
            # No job has this token: a store that is reached raises this error.
            with contextlib.suppress(UnknownJobError):
                store.poll(secrets.token_hex(32), 0, at=clock.now())
        finally:
            store.close()

    pairs = [mark.partition(":") for mark in marks if mark]
    return probe([(Path(path), word) for word, _, path in pairs], reach_store, now=time.time())
