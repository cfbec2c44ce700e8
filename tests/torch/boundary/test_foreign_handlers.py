"""Signals that the process catches by a handler which is not Python's."""

import faulthandler
import signal

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
