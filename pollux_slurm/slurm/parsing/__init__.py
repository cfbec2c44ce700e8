"""Slurm's texts and JSON, read into typed values.

May be imported by `cli`, `daemon`, `launch`, `now`, `report`, `simulator`, `slurm/commands`,
`slurm/pyslurm`.
"""
