"""The backend that runs Slurm's own commands: squeue, sinfo, scontrol, sbatch, sacctmgr and sacct.

May be imported by `cli`, `daemon`, `functions`, `launch`, `sandbox`, `slurm/pyslurm`.
"""
