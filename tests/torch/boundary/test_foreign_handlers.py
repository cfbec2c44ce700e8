"""Handlers of signals that are not ours: those of C libraries, and those that a script sets after ours."""

import faulthandler
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pollux_slurm.torch.boundary.sigterm import StopFlag


def test_that_a_signal_that_faulthandler_has_stays_its_own() -> None:
    flag = StopFlag()
    faulthandler.register(signal.SIGUSR1)
    try:
        flag.install()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGUSR2) == flag._handle
    finally:
        flag.remove()
        faulthandler.unregister(signal.SIGUSR1)


@pytest.fixture
def flag() -> Iterator[StopFlag]:
    """A flag with its handlers, which are the test's only ones."""
    before = signal.getsignal(signal.SIGTERM)
    flag = StopFlag()
    flag.install()
    yield flag
    flag.remove()
    signal.signal(signal.SIGTERM, before)


def test_that_a_later_handler_that_calls_ours_is_called_once(flag: StopFlag) -> None:
    calls: list[int] = []
    ours: Any = signal.getsignal(signal.SIGTERM)

    def chained(number: int, frame: Any) -> None:
        calls.append(number)
        ours(number, frame)

    signal.signal(signal.SIGTERM, chained)
    flag.take_back()
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    assert flag.is_set
    assert calls == [signal.SIGTERM]
    flag.end_training()
    assert signal.getsignal(signal.SIGTERM) is chained
    assert calls == [signal.SIGTERM]


def test_that_a_later_handler_that_ends_the_script_does_so_after_the_training(flag: StopFlag) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    flag.take_back()
    signal.raise_signal(signal.SIGTERM)
    assert flag.is_set
    with pytest.raises(SystemExit) as end:
        flag.end_training()
    assert end.value.code == 7


@pytest.mark.parametrize("theirs", [signal.SIG_IGN, signal.SIG_DFL])
def test_that_a_script_that_drops_our_handler_is_stopped_as_well(flag: StopFlag, theirs: Any) -> None:
    signal.signal(signal.SIGTERM, theirs)
    flag.take_back()
    signal.raise_signal(signal.SIGTERM)
    assert flag.is_set
    flag.end_training()
    assert signal.getsignal(signal.SIGTERM) is theirs
