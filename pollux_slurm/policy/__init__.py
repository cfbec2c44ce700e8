"""Problem in, allocation out: pure functions of numpy and scipy."""

from pollux_slurm.policy.decide import decide

__all__ = ["decide"]
