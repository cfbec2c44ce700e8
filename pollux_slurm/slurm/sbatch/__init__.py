"""What a user requests of sbatch: script, command line and environment, parsed as sbatch does.

May be imported by `cli`, `daemon`, `functions`, `launch`, `slurm/commands`.
"""
