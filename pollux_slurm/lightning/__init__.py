"""Lightning over Pollux: `Trainer(strategy="pollux")`, with LightningModule and DataModule unchanged.

May be imported by scripts that train.
"""

from pollux_slurm.extras import extras_named

with extras_named():
    from pollux_slurm.lightning.environment import PolluxEnvironment
    from pollux_slurm.lightning.strategy import PolluxStrategy, register

register()

__all__ = ["PolluxEnvironment", "PolluxStrategy"]
