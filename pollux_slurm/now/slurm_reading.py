"""One read of Slurm for people who look: with a short timeout, and a reason instead of an error."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from pollux_slurm.errors import SlurmError

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.model import ClusterSnapshot

# A slow slurmctld must not delay what the store can answer.
_MAX_TIMEOUT_S = 10.0


def read_slurm(config: Config) -> tuple[ClusterSnapshot | None, str]:
    """Return a snapshot of Slurm, or None and the reason why it cannot be read."""
    from pollux_slurm.slurm import connect

    timeout_s = min(config.slurm.command_timeout_s, _MAX_TIMEOUT_S)
    slurm = dataclasses.replace(config.slurm, backend="commands", command_timeout_s=timeout_s)
    try:
        return connect(slurm, os.environ).snapshot(), ""
    except SlurmError as error:
        return None, str(error)
