"""Fault injection: a private Slurm, six training jobs, the real daemon, and a seeded schedule of faults.

`python -m tests.chaos`, or `make chaos`. `make test-full` has a shorter one.
"""
