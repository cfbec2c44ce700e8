"""The backend that runs Slurm's own commands: squeue, sinfo, scontrol, sbatch, sacctmgr and sacct.

May be imported by `agent`, `cli`, `daemon`, `functions`, `sandbox`, `slurm/pyslurm`.
"""
