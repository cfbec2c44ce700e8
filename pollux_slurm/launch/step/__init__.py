"""What `pollux run` asks of Slurm about its step: its number, signals, and a requeue where GPUs are missing.

May be imported by `launch/anchor`, `launch/run`.
"""
