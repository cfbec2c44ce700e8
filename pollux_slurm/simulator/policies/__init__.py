"""What can decide in a simulation, by name."""

from pollux_slurm.simulator.policies.optimus import OptimusPolicy
from pollux_slurm.simulator.policies.pollux import PolluxPolicy
from pollux_slurm.simulator.policies.tiresias import TiresiasPolicy

__all__ = ["OptimusPolicy", "PolluxPolicy", "TiresiasPolicy"]
