"""The cluster environment: processes are those that `pollux run` has started, here or in Slurm."""

from __future__ import annotations

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

from pollux_slurm import env


class PolluxEnvironment(ClusterEnvironment):
    """Tell Lightning ranks and sizes as `pollux_slurm.env` has them.

    Lightning starts no process and asks Slurm nothing. A plain `python train.py` is one process. The
    environment is read once, when this object is made. Its methods are Lightning's hooks; `PolluxStrategy`
    makes one.

    Examples:
        >>> environment = PolluxEnvironment()
        >>> environment.global_rank(), environment.world_size()
        (0, 1)
    """

    def __init__(self) -> None:
        super().__init__()
        self._world_size, self._global_rank = env.num_replicas(), env.replica_rank()
        self._local_rank, self._node_rank = env.local_rank(), env.node_rank()

    @property
    def creates_processes_externally(self) -> bool:
        """True: `pollux run` starts the processes."""
        return True

    @property
    def main_address(self) -> str:
        """The address of rank 0."""
        return env.master_addr()

    @property
    def main_port(self) -> int:
        """The port of rank 0."""
        return env.master_port()

    @staticmethod
    def detect() -> bool:
        """False: this environment comes with the strategy, never by itself."""
        return False

    def world_size(self) -> int:
        """The number of replicas in this run."""
        return self._world_size

    def set_world_size(self, size: int) -> None:
        """Ignore it: Pollux decides."""

    def global_rank(self) -> int:
        """This replica's number."""
        return self._global_rank

    def set_global_rank(self, rank: int) -> None:
        """Ignore it: Pollux decides."""

    def local_rank(self) -> int:
        """This replica's number on its node."""
        return self._local_rank

    def node_rank(self) -> int:
        """The number of this replica's node."""
        return self._node_rank
