"""`/metrics` and `/health`."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import replace
from datetime import timedelta

import pytest

from pollux_slurm.daemon.service import http_endpoint
from pollux_slurm.daemon.service.http_endpoint import parse_address, serve_metrics
from pollux_slurm.daemon.service.metrics import DaemonMetrics, totals
from pollux_slurm.errors import ConfigError
from pollux_slurm.model import Decision, ReallocationWay
from pollux_slurm.model import ReallocationStep as Step
from tests.daemon.builders import NOON, reallocation, record
from tests.daemon.harness import Harness


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


def asked(port: int | None, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    assert port is not None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_that_metrics_count_rounds_moves_and_commands() -> None:
    clock = Clock()
    metrics = DaemonMetrics(monotonic=clock)
    with metrics.measured_round(interval_s=60):
        with metrics.phase("decide"):
            clock.now_s += 2.5
        for _ in range(3):
            metrics.count_command("squeue")
        metrics.skipped.labels("slurm").inc()
        metrics.end_round(7, Decision(jobs=(), fitness=0.5, solver="test", gap=0.01), (record("1"),))
    move = reallocation(1, "1", Step.CHECKPOINTED, source={"n0": 1}, target={"n0": 2})
    metrics.end_move(move, Step.CONFIRMED, NOON + timedelta(seconds=9))
    in_place = replace(move, way=ReallocationWay.IN_PLACE, standstill_s=0.5)
    metrics.end_move(in_place, Step.CONFIRMED, NOON + timedelta(seconds=9))
    metrics.count_command("scontrol")
    clock.now_s += 4
    with serve_metrics(metrics, listen="127.0.0.1:0") as port:
        code, text = asked(port, "/metrics")
        assert json.loads(asked(port, "/health")[1])["skipped_rounds"] == {"slurm": 1}
    assert code == 200
    lines = text.splitlines()
    for line in (
        "pollux_rounds_total 1.0",
        'pollux_rounds_skipped_total{reason="slurm"} 1.0',
        'pollux_round_seconds_sum{phase="decide"} 2.5',
        'pollux_jobs{state="running"} 1.0',
        'pollux_jobs{state="paused"} 0.0',
        'pollux_reallocations_total{kind="move",outcome="confirmed",way="requeue"} 1.0',
        'pollux_reallocations_total{kind="move",outcome="confirmed",way="in_place"} 1.0',
        'pollux_reallocation_lost_seconds_total{way="requeue"} 9.0',
        'pollux_reallocation_lost_seconds_total{way="in_place"} 0.5',
        'pollux_slurm_commands_total{command="squeue"} 3.0',
        "pollux_slurm_commands_last_round 3.0",
        'pollux_slurm_commands_total{command="scontrol"} 1.0',
        "pollux_decision_gap 0.01",
        "pollux_last_round_age_seconds 4.0",
        'pollux_errors_total{source="store"} 0.0',
        "pollux_leader 0.0",
    ):
        assert line in lines
    assert all(line.startswith(("pollux_", "# HELP pollux_", "# TYPE pollux_")) for line in lines)


def test_that_only_metrics_and_health_are_served() -> None:
    with serve_metrics(DaemonMetrics(monotonic=Clock()), listen="127.0.0.1:0") as port:
        code, text = asked(port, "/health")
        assert (code, json.loads(text)["status"]) == (200, "ok")
        assert asked(port, "/etc/passwd")[0] == 404


def test_that_a_leader_without_rounds_is_not_well() -> None:
    clock = Clock()
    metrics = DaemonMetrics(monotonic=clock)
    metrics.is_leader = True
    metrics.end_round(1, Decision(jobs=(), fitness=0.5, solver="test"), ())
    clock.now_s += 239
    assert metrics.health()[0]
    clock.now_s += 2
    assert not metrics.health()[0]
    with serve_metrics(metrics, listen="127.0.0.1:0") as port:
        assert asked(port, "/health")[0] == 503
    metrics.is_leader = False
    assert metrics.health()[0]


def give_up_a_round(metrics: DaemonMetrics, *, interval_s: float) -> None:
    with metrics.measured_round(interval_s=interval_s):
        pass


def test_that_a_leader_that_never_finished_a_round_is_not_well_and_patience_follows_the_settings() -> None:
    clock = Clock()
    metrics = DaemonMetrics(monotonic=clock)
    metrics.is_leader = True
    assert metrics.health()[0]
    give_up_a_round(metrics, interval_s=60)
    clock.now_s += 239
    give_up_a_round(metrics, interval_s=60)
    assert metrics.health()[0]
    clock.now_s += 2
    assert not metrics.health()[0]
    with metrics.measured_round(interval_s=60):
        assert not metrics.health()[0]
    give_up_a_round(metrics, interval_s=600)
    assert metrics.health()[0]


def test_that_a_long_round_differs_from_one_that_hangs() -> None:
    clock = Clock()
    metrics = DaemonMetrics(monotonic=clock)
    metrics.is_leader = True
    metrics.end_round(1, Decision(jobs=(), fitness=0.5, solver="test"), ())
    clock.now_s += 60
    with metrics.measured_round(interval_s=60, decision_limit_s=30):
        for _ in range(3):
            with metrics.phase("read_slurm"):
                clock.now_s += 200
            assert metrics.health()[0]
        with metrics.phase("decide"):
            clock.now_s += 269
            assert metrics.health()[0], "the search may take its time"
            clock.now_s += 2
            assert not metrics.health()[0], "it hangs"
    assert not metrics.health()[0], "it was given up"


def test_that_a_taken_address_costs_only_the_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    metrics = DaemonMetrics(monotonic=Clock())
    with (
        serve_metrics(metrics, listen="127.0.0.1:0") as port,
        serve_metrics(metrics, listen=f"127.0.0.1:{port}") as second,
    ):
        assert second is None
    assert "no metrics: 127.0.0.1:" in caplog.text


@pytest.mark.parametrize(
    "text", ["9748", "localhost", ":9748", "localhost:http", "localhost:70000", "localhost:" + "9" * 5000, ""]
)
def test_that_an_address_without_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="metrics_listen"):
        parse_address(text)


def test_that_addresses_are_read() -> None:
    assert parse_address("off") is None
    assert parse_address("127.0.0.1:9748") == ("127.0.0.1", 9748)
    assert parse_address("[::1]:1") == ("::1", 1)
    assert http_endpoint.OFF == "off"


MOVED = ("move", "requeue", "confirmed")


def test_that_a_real_round_and_its_moves_are_counted(harness: Harness) -> None:
    job_id = harness.submit()
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.has_stepped(job_id), seconds=8)
    harness.targets = {job_id: {"n1": 2}}
    harness.run_until(daemon, until=lambda: totals(daemon.metrics.outcomes).get(MOVED) == 1, seconds=30)
    metrics = daemon.metrics
    assert totals(metrics.outcomes)[MOVED] == 1
    assert metrics.is_leader
    assert {phase for (phase,) in totals(metrics.phases)} == {"total", "read_slurm", "decide", "record"}
    assert totals(metrics.lost_s)["requeue",] > 0
    assert (metrics.registry.get_sample_value("pollux_rounds_total") or 0) >= 2
    harness.slurm.down = True
    daemon.round()
    assert (totals(metrics.skipped)["slurm",], totals(metrics.errors)["slurm",]) == (1, 1)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_that_it_listens_on_ipv6_too() -> None:
    with (
        serve_metrics(DaemonMetrics(monotonic=Clock()), listen="[::1]:0") as port,
        socket.create_connection(("::1", port or 0), timeout=300) as peer,
    ):
        peer.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert peer.recv(64).startswith(b"HTTP/1.0 200 OK")
