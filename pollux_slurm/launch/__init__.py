"""`pollux sbatch` and `pollux run`: submitting jobs, and starting, watching and resizing their processes.

May be imported by `cli`, `functions`, `launch/anchor`, `launch/run`, `launch/submit`.
"""
