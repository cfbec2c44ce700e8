"""The edge to Slurm: one protocol, its backends, and a private cluster for trying things."""

from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.connection import connect

__all__ = ["SlurmClient", "connect"]
