"""Telemetry in Prometheus' text form. `prometheus_client` is imported here alone, when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pollux_slurm.daemon.telemetry import Telemetry
from pollux_slurm.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(telemetry: Telemetry) -> bytes:
    """Return every metric. Raises `ConfigError` where the extra `metrics` is not installed."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector
    except ImportError:
        raise ConfigError("metrics need prometheus_client: pip install 'pollux-slurm[metrics]'") from None

    class Once(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from families(telemetry)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return generate_latest(registry)


def families(telemetry: Telemetry) -> Iterator[Metric]:
    """Yield the metric families; every name begins with `pollux_`."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

    def gauge(name: str, text: str, value: float | None) -> Metric:
        return GaugeMetricFamily(f"pollux_{name}", text, value=float("nan") if value is None else value)

    yield CounterMetricFamily("pollux_rounds", "Rounds held to their end.", value=telemetry.rounds)
    skipped = CounterMetricFamily("pollux_rounds_skipped", "Rounds given up, by reason.", labels=["reason"])
    for reason, count in sorted(telemetry.skipped.items()):
        skipped.add_metric([reason], count)
    yield skipped
    phases = SummaryMetricFamily("pollux_round_seconds", "Time of rounds, by phase.", labels=["phase"])
    for phase, (times, seconds) in sorted(telemetry.phases.items()):
        phases.add_metric([phase], count_value=times, sum_value=seconds)
    yield phases
    age = None if telemetry.last_round_s is None else telemetry.monotonic() - telemetry.last_round_s
    yield gauge("last_round_age_seconds", "Time since the last round that was held to its end.", age)
    jobs = GaugeMetricFamily("pollux_jobs", "Adaptive jobs in the last round, by state.", labels=["state"])
    for state, count in sorted(telemetry.jobs.items()):
        jobs.add_metric([state], count)
    yield jobs
    ends = CounterMetricFamily(
        "pollux_reallocations", "Reallocations that ended, by kind and outcome.", labels=["kind", "outcome"]
    )
    for name, count in sorted(telemetry.outcomes.items()):
        ends.add_metric(name.split("/"), count)
    yield ends
    yield gauge("reallocations_open", "Reallocations under way.", telemetry.open_moves)
    yield CounterMetricFamily(
        "pollux_reallocation_lost_seconds", "Time that jobs stood still for moves.", value=telemetry.lost_s
    )
    yield gauge("decision_gap", "How far the last decision may be from the best.", telemetry.gap)
    yield gauge("decision_fitness", "Value of the last decision's objective.", telemetry.fitness)
    errors = CounterMetricFamily("pollux_errors", "Errors of the store and of Slurm.", labels=["source"])
    for source in ("slurm", "store"):
        errors.add_metric([source], telemetry.errors[source])
    yield errors
    commands = CounterMetricFamily(
        "pollux_slurm_commands", "Slurm commands run, by command.", labels=["command"]
    )
    for command, count in sorted(telemetry.commands.items()):
        commands.add_metric([command], count)
    yield commands
    yield gauge("slurm_commands_last_round", "Slurm commands of the last round.", telemetry.commands_of_round)
    yield gauge("leader", "1 where this daemon holds the lease.", float(telemetry.is_leader))
