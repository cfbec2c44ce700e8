"""The interface to Slurm: one protocol in `client.py`, and `connection.py`, which makes its backend.

May be imported by `agent`, `cli`, `daemon`, `functions`, `now`.
"""

from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.connection import connect

__all__ = ["SlurmClient", "connect"]
