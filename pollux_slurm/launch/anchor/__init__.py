"""A job that moves in place on Slurm: its anchor, which submits wings, and the connection between them.

May be imported by `launch/run`.
"""
