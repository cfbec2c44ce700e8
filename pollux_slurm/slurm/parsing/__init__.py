"""Slurm's texts and JSON, read into typed values.

May be imported by `agent`, `cli`, `daemon`, `slurm/commands`, `slurm/pyslurm`.
"""
