"""Check settings that are valid alone, but not together."""

from __future__ import annotations

from pathlib import Path

from pollux_slurm.config import Config, DaemonConfig
from pollux_slurm.daemon.decide import policy_settings
from pollux_slurm.daemon.service.http_endpoint import parse_address
from pollux_slurm.daemon.service.steering_files import refuse_others_for_root
from pollux_slurm.errors import ConfigError


def check(config: Config) -> None:
    """Raise `ConfigError` for the first error; of files, only their existence, owners and modes are read."""
    policy_settings.check(config.policy)
    parse_address(config.daemon.metrics_listen)
    check_intervals(config.daemon)
    _check_lease(config)
    if config.agent.poll_interval_s > config.daemon.checkpoint_timeout_s / 2:
        raise ConfigError(
            f"agent.poll_interval_s = {config.agent.poll_interval_s:g}: a job must look for requests at "
            f"least twice in daemon.checkpoint_timeout_s = {config.daemon.checkpoint_timeout_s:g}"
        )
    invalid = [name for name in config.daemon.partitions if any(c.isspace() or c == "," for c in name)]
    if invalid:
        raise ConfigError(
            f"daemon.partitions: {invalid[0]!r} is not a partition's name; write one per string"
        )
    for key, folder in (("slurm.bin_dir", config.slurm.bin_dir), ("templates.dir", config.templates.dir)):
        if folder is not None and not Path(folder).is_dir():
            raise ConfigError(f"{key}: {folder}: there is no such folder")
    refuse_others_for_root(config)


def check_intervals(config: DaemonConfig) -> None:
    """Raise `ConfigError` for intervals and time-outs that contradict each other."""
    if config.tick_s > config.interval_s:
        raise ConfigError(
            f"daemon.tick_s = {config.tick_s:g}: moves advance between rounds, so it may be at most "
            f"daemon.interval_s = {config.interval_s:g}"
        )
    if config.pause_ttl_s < 2 * config.interval_s:
        raise ConfigError(
            f"daemon.pause_ttl_s = {config.pause_ttl_s:g}: rounds renew it, so it must be at least two "
            f"intervals (daemon.interval_s = {config.interval_s:g}), or paused jobs start by themselves"
        )
    if config.restart_delay_s > config.max_restart_delay_s:
        raise ConfigError(
            f"daemon.restart_delay_s = {config.restart_delay_s:g}: no measured delay counts for more than "
            f"daemon.max_restart_delay_s = {config.max_restart_delay_s:g}, so it may be that at most"
        )


def _check_lease(config: Config) -> None:
    """Raise `ConfigError` for a `daemon.lease_ttl_s` that was set and does not fit the intervals."""
    daemon = config.daemon
    if dict(config.origins).get("daemon.lease_ttl_s", "default") == "default":
        return
    least_s, most_s = 4 * daemon.tick_s, 1.5 * daemon.interval_s
    if not least_s <= daemon.lease_ttl_s <= max(most_s, least_s):
        raise ConfigError(
            f"daemon.lease_ttl_s = {daemon.lease_ttl_s:g}: it may be from four times daemon.tick_s "
            f"({least_s:g}) to one and a half times daemon.interval_s ({most_s:g})"
        )
