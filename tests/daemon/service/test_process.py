"""`pollux daemon` as a process on a real Slurm: suspended and continued, reloaded, and its health."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.store import open_store
from pollux_slurm.store.contract.interface import Store
from tests.stopping import stop_between_writes
from tests.waiting import wait_until

INTERVAL_S = 2


class Site:
    """A store, a settings file, and the daemons that were started on them."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/pollux.db"
        self.store: Store = open_store(self.url, create=True)
        self.config = folder / "pollux.toml"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.configure("seed = 1")
        self.env = {**os.environ, **sandbox.env, "POLLUX_STORE_URL": self.url}
        self.processes: list[subprocess.Popen[bytes]] = []

    def configure(self, policy: str) -> None:
        daemon = f'interval_s = {INTERVAL_S}\nmetrics_listen = "127.0.0.1:{self.port}"\n'
        self.config.write_text(f"[daemon]\n{daemon}[policy]\n{policy}\n")

    def start(self) -> subprocess.Popen[bytes]:
        with self.log(len(self.processes)).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pollux_slurm", "daemon", "--config", str(self.config)],
                env=self.env,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def log(self, number: int) -> Path:
        return self.folder / f"daemon-{number}.log"

    def has_logged(self, number: int, words: str) -> bool:
        return words in self.log(number).read_text()

    def rounds(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=60) as answer:
                return int(json.loads(answer.read())["round"] or 0)
        except (OSError, ValueError):
            return 0

    def seed(self) -> int:
        return self.store.rounds.problem()[0].seed

    def close(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes:
            process.wait(timeout=300)
        self.store.close()


@pytest.fixture
def site(tmp_path: Path, sandbox: Sandbox) -> Iterator[Site]:
    made = Site(tmp_path, sandbox)
    yield made
    made.close()


def test_that_settings_are_reloaded_and_wrong_ones_refused(site: Site) -> None:
    process = site.start()
    wait_until(lambda: site.rounds() >= 1, timeout_s=120, what="a first round")
    site.configure('seed = "none"')
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: site.has_logged(0, "the old ones stay in force"), timeout_s=120, what="the refusal")
    assert site.has_logged(0, "policy.seed")
    site.configure("seed = 7")
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: site.seed() == 7, timeout_s=120, what="a round with the new seed")
    assert process.poll() is None


def test_that_a_second_daemon_takes_over_from_a_stopped_one_which_then_waits(site: Site) -> None:
    first = site.start()
    wait_until(lambda: site.rounds() >= 1, timeout_s=120, what="a first round")
    site.start()
    wait_until(
        lambda: site.has_logged(1, "another daemon has the lease; waiting"), timeout_s=120, what="the second"
    )
    stop_between_writes(first.send_signal, site.folder / "pollux.db")
    wait_until(lambda: site.has_logged(1, "round "), timeout_s=120, what="the second one's first round")
    first.send_signal(signal.SIGCONT)
    wait_until(
        lambda: site.has_logged(0, "another daemon has the lease"),
        timeout_s=120,
        what="the first to see that",
    )
    acting = [process.pid for process in site.processes if process.poll() is None]
    assert len(acting) == 2
    # A daemon that a busy machine kept from renewing its lease acquires it again at once.
    wait_until(
        lambda: not site.store.lease.acquire("nobody", ttl_s=1, at=datetime.now(timezone.utc)),
        timeout_s=120,
        what="a daemon to hold the lease",
    )
