"""Slurm's texts and JSON, read into typed values.

May be imported by `agent`, `cli`, `daemon`, `now`, `report`, `simulator`, `slurm/commands`,
`slurm/pyslurm`.
"""
