"""The interface to Slurm: one protocol in `client.py`, and `connection.py`, which makes its backend.

May be imported by `cli`, `daemon`, `functions`, `launch`, `now`.
"""

from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.connection import connect

__all__ = ["SlurmClient", "connect"]
