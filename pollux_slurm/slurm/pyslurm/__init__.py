"""The PySlurm backend: one module imports PySlurm, in a process of its own.

May be imported by `slurm` itself only.
"""
