"""Another user holds idle connections to each port of ours: who is waited for gets through all the same."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import pytest
from starlette.responses import PlainTextResponse

from pollux_slurm.daemon.service.http_endpoint import serve_metrics
from pollux_slurm.daemon.service.metrics import DaemonMetrics
from pollux_slurm.launch.anchor.link import LinkListener, connect
from pollux_slurm.web.connections import Connections
from pollux_slurm.web.guard import COOKIE, Guard
from pollux_slurm.web.server import listening
from tests.people import User, two_users
from tests.web.serving import DEADLINE_S, asked, served

NUMBER = 1111
"""More than this process may have open."""


@pytest.fixture(scope="module")
def other() -> Iterator[User]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with two_users({}, imports="socket") as (_, user):
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
        yield user
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_that_a_wing_meets_its_anchor(other: User) -> None:
    listener = LinkListener("a secret")
    try:
        with other.holding_connections(listener.port, NUMBER):
            wing = connect("127.0.0.1", listener.port, "a secret")
            wing.send({"wing": "1"})
            assert listener.messages.get(timeout=DEADLINE_S)[1] == {"wing": "1"}
            wing.close()
    finally:
        listener.close()


def test_that_metrics_are_read(other: User) -> None:
    with serve_metrics(DaemonMetrics(monotonic=time.monotonic), listen="127.0.0.1:0") as port:
        assert port is not None
        with other.holding_connections(port, NUMBER):
            assert asked(port, "/metrics")[0] == 200


@pytest.mark.parametrize("token", [None, "a-token"])
def test_that_a_reader_sees_the_pages_and_nothing_is_logged(
    capfd: pytest.CaptureFixture[str], other: User, token: str | None
) -> None:
    app = Guard(
        app=PlainTextResponse("pages"), hosts=None, token=token, connections=(connections := Connections())
    )
    with (
        listening("127.0.0.1", 0) as listener,
        served(app, connections, listener) as port,
        other.holding_connections(port, NUMBER),
    ):
        assert asked(port, "/")[0] == (200 if token is None else 403)
        assert asked(port, "/", {"cookie": f"{COOKIE}={token}"}) == (200, "pages")
        assert capfd.readouterr().err == ""
