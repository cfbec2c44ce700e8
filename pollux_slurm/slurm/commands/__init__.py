"""The backend that runs Slurm's own commands: what is asked of Slurm, and what it is told.

May be imported by `agent`, `cli`, `daemon`, `sandbox`, `slurm/pyslurm`.
"""
