"""Queues, limits and rules as sites have them, on a real Slurm: `make check-site`."""
