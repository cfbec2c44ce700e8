"""`pollux daemon`: the meta-scheduler beside slurmctld."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import pwd
import secrets
import signal
import socket
import threading
import time
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.duration_options import seconds
from pollux_slurm.cli.shared.settings_and_store import ConfigOption, StoreOption, opened_store, settings
from pollux_slurm.errors import ConfigError, PolluxError, SlurmError
from pollux_slurm.text import LineFormatter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux_slurm.config import Config
    from pollux_slurm.daemon.observe.accounted_runs import PastRuns
    from pollux_slurm.daemon.observe.association_limits import LimitsReader
    from pollux_slurm.daemon.round import Settings
    from pollux_slurm.daemon.service.privileges import Scope
    from pollux_slurm.model import AccountedRun
    from pollux_slurm.slurm.client import SlurmClient


def daemon(
    once: Annotated[bool, typer.Option("--once", help="Run one round, enact it, and exit.")] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            parser=seconds(least=0.5, most=86400),
            metavar="TIME",
            help="Time between rounds: seconds, or 90s, 5m.",
        ),
    ] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Decide and record, but enact nothing.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also log details.")] = False,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Run the scheduler of adaptive jobs: decide in rounds how many GPUs each job gets, and move jobs.

    SIGTERM stops it. SIGHUP makes it read its settings again; with an error in them the old ones stay.

    Example: pollux daemon --shadow --interval 60
    """
    stop, reload_requested = threading.Event(), threading.Event()
    _on(signal.SIGTERM, stop)  # before the slow imports
    _on(signal.SIGINT, stop)
    _on(signal.SIGHUP, reload_requested)

    from pollux_slurm.daemon.loop import Daemon, mode_text
    from pollux_slurm.daemon.service.http_endpoint import OFF, serve_metrics
    from pollux_slurm.daemon.service.metrics import DaemonMetrics
    from pollux_slurm.daemon.service.systemd_notify import Notifier
    from pollux_slurm.slurm import connect

    _log_to_stderr(logging.DEBUG if verbose else logging.INFO)
    config = settings(config_file, store_url)
    effective = daemon_settings(config, interval_s=interval, shadow=shadow)
    metrics = DaemonMetrics(monotonic=time.monotonic)

    url = config.require_store_url()
    slurm = connect(config.slurm, os.environ, on_run=metrics.count_command)
    scope = scope_of(config, slurm)
    _log_scope(scope, mode_text(effective.config))
    metrics.describe_build(slurm=_slurm_release(slurm), store=url.partition(":")[0].partition("+")[0])
    with (
        opened_store(config) as store,
        serve_metrics(metrics, listen=OFF if once else effective.config.metrics_listen),
    ):
        runner = Daemon(
            slurm=slurm,
            store=store,
            settings=effective,
            # Unique, also among containers with the same host name and process id.
            owner=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
            wall_clock=clock.now,
            monotonic=time.monotonic,
            stop=stop,
            metrics=metrics,
            notifier=Notifier(os.environ, monotonic=time.monotonic),
            reload=lambda: _reloaded(config, config_file, store_url, interval_s=interval, shadow=shadow),
            reload_requested=reload_requested,
            scope=scope,
            site_limits=limits_of(config, slurm),
            past_runs=past_runs_of(config, slurm),
        )
        if not once:
            runner.run()
            logging.getLogger(__name__).info("stopped")
            return
        result = runner.run_once()
    if result.skipped is not None:
        raise PolluxError(f"the round was skipped: {result.skipped}")


def _log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def scope_of(config: Config, slurm: SlurmClient) -> Scope:
    """Return what determines whose jobs this user's daemon may move."""
    from pollux_slurm.daemon.service.privileges import Scope
    from pollux_slurm.slurm.connection import accounting

    return Scope(
        config.daemon.jobs,
        user_id=os.geteuid(),
        user_name=user_name(),
        settings=slurm.settings,
        admin_level=lambda name: accounting(config.slurm, os.environ).admin_level(name),
    )


def limits_of(config: Config, slurm: SlurmClient) -> LimitsReader:
    """Return a reader of Slurm's own limits."""
    from pollux_slurm.daemon.observe.association_limits import LimitsReader, SiteLimits, are_enforced
    from pollux_slurm.slurm.connection import accounting

    def read() -> SiteLimits:
        site = slurm.settings()
        if not are_enforced(site):
            return SiteLimits()
        database = accounting(config.slurm, os.environ)
        return SiteLimits(
            associations=database.associations(site.get("ClusterName", "")),
            qos_limits=database.qos_limits(),
            partitions=database.partition_qos(),
        )

    return LimitsReader(read, monotonic=time.monotonic)


def past_runs_of(config: Config, slurm: SlurmClient) -> PastRuns:
    """Return a function that reads runs from Slurm's accounting database, None without slurmdbd."""
    from pollux_slurm.slurm.connection import accounting

    def ask(job_ids: Sequence[str], since: datetime) -> tuple[AccountedRun, ...] | None:
        if "slurmdbd" not in slurm.settings().get("AccountingStorageType", ""):
            return None
        return accounting(config.slurm, os.environ).runs(job_ids, since=since)

    return ask


def user_name() -> str:
    """Return the name of this process's user, or the user id if there is no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _log_scope(scope: Scope, mode: str) -> None:
    log = logging.getLogger(__name__)
    try:
        own = scope() is not None
    except SlurmError as error:
        log.warning("it is not known yet whose jobs may be moved: %s", error)
    else:
        whose = f"the jobs of {user_name()} only" if own else "the jobs of all users"
        log.info("decides for %s: %s", whose, mode)


def _slurm_release(slurm: SlurmClient) -> str:
    """Return slurmctld's release, empty where it does not answer."""
    try:
        return slurm.settings().get("SLURM_VERSION", "")
    except SlurmError:
        return ""


def daemon_settings(config: Config, *, interval_s: float | None, shadow: bool) -> Settings:
    """Return the daemon's settings; raises `ConfigError` for settings with which no round can run."""
    from pollux_slurm.daemon.round import Settings
    from pollux_slurm.daemon.service import settings_check
    from pollux_slurm.goodput import TableCache
    from pollux_slurm.policy import NodeFactsCache, decide

    settings_check.check(config)
    daemon = dataclasses.replace(
        config.daemon,
        interval_s=interval_s or config.daemon.interval_s,
        shadow=shadow or config.daemon.shadow,
    )
    settings_check.check_intervals(daemon)
    return Settings(
        config=daemon,
        policy=config.policy,
        moves=config.moves,
        kinds=config.kinds,
        # Goodput tables are cached between rounds: only those of new reports are computed.
        decide=functools.partial(
            decide,
            tables=TableCache(),
            nodes=NodeFactsCache(),
            solver=config.policy.solver,
            time_limit_s=config.policy.time_limit_s,
        ),
    )


def _reloaded(
    started_with: Config,
    config_file: Path | None,
    store_url: str | None,
    *,
    interval_s: float | None,
    shadow: bool,
) -> Settings:
    config = settings(config_file, store_url)
    if (config.store, config.slurm) != (started_with.store, started_with.slurm):
        raise ConfigError("[store] and [slurm] are read at the start only: restart the daemon to change them")
    if config.daemon.jobs != started_with.daemon.jobs:
        raise ConfigError("daemon.jobs is read at the start only: restart the daemon to change it")
    if config.daemon.metrics_listen != started_with.daemon.metrics_listen:
        raise ConfigError("daemon.metrics_listen is read at the start only: restart the daemon to change it")
    return daemon_settings(config, interval_s=interval_s, shadow=shadow)


def _on(signum: signal.Signals, event: threading.Event) -> None:
    def note(_signum: int, _frame: FrameType | None) -> None:
        event.set()

    signal.signal(signum, note)
