"""Inputs of simulations from a site's own jobs: from its store, or from Slurm's accounting.

May be imported by `cli`, `simulator/experiments`.
"""
