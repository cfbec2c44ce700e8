"""A private Slurm cluster of many nodes on one machine, from the distribution's packages.

May be imported by `cli`.
"""
