"""A site's own jobs as inputs of simulations, from its store or from Slurm's accounting.

May be imported by `cli`, `simulator/experiments`.
"""
