"""Pollux (OSDI 2021) for Slurm: goodput-optimal GPU allocation for adaptive deep-learning jobs.

Importing this package imports neither torch nor pyslurm nor a database driver.
"""

__version__ = "0.1.0"
