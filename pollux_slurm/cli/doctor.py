"""`pollux doctor`: what of this site would make trouble."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import typer

from pollux_slurm.cli.common import ConfigOption, JsonOption, StoreOption, opened_store, print_json, settings
from pollux_slurm.errors import PolluxError

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.daemon.doctor import Finding


def doctor(
    as_json: JsonOption = False, config_file: ConfigOption = None, store_url: StoreOption = None
) -> None:
    """Check settings, store and Slurm for what would make trouble, and say what to change.

    Exit code 1 when something must be changed before the daemon acts.

    Example: pollux doctor --config /etc/pollux/pollux.toml
    """
    from pollux_slurm.daemon.doctor import Verdict

    findings = list(examined(settings(config_file, store_url), lambda: datetime.now(timezone.utc)))
    if as_json:
        print_json(
            [{"name": f.name, "verdict": f.verdict.value, "text": f.text, "cure": f.cure} for f in findings]
        )
    else:
        for finding in findings:
            typer.echo(f"{finding.verdict.value:<4} {finding.name}: {finding.text}")
            if finding.cure:
                typer.echo(f"       → {finding.cure}")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(1)


def examined(config: Config, clock: Callable[[], datetime]) -> Iterator[Finding]:
    """Read what there is to read, and yield what is found; what cannot be read is a finding, too."""
    from pollux_slurm.daemon import rules
    from pollux_slurm.daemon.doctor import Finding, Verdict, examine_jobs, examine_slurm
    from pollux_slurm.slurm import connect

    def failed(name: str, error: PolluxError) -> Finding:
        return Finding(name=name, verdict=Verdict.FAIL, text=str(error), cure="see above")

    try:
        rules.check(config.policy)
        yield Finding(
            name="settings", verdict=Verdict.OK, text=str(config.path or "defaults and environment")
        )
    except PolluxError as error:
        yield failed("settings", error)
    snapshot, records = None, None
    try:
        with opened_store(config) as store:
            records = store.active_jobs()
        local = (config.store.url or "").startswith("sqlite")
        yield Finding(
            name="store",
            verdict=Verdict.WARN if local else Verdict.OK,
            text=f"{len(records)} active jobs",
            cure="an SQLite file serves one host only: use PostgreSQL when nodes are other hosts"
            if local
            else "",
        )
    except PolluxError as error:
        yield failed("store", error)
    try:
        slurm = connect(config.slurm, os.environ)
        before = clock()
        site, version = slurm.settings(), slurm.version()
        snapshot = slurm.snapshot()
    except PolluxError as error:
        yield failed("Slurm", error)
    else:
        skew_s = _skew_s(site.get("as of"), before)
        yield from examine_slurm(config, version=version, site=site, snapshot=snapshot, clock_skew_s=skew_s)
    if snapshot is not None and records is not None:
        yield from examine_jobs(snapshot, records)


def _skew_s(shown: str | None, here: datetime) -> float | None:
    """Return how far slurmctld's clock is ahead, None where it told no time."""
    try:
        there = datetime.strptime(shown or "", "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return (there - here).total_seconds()
