"""Fault injection: a private Slurm, six training jobs, the real daemon, and a seeded schedule of faults.

`python -m tests.chaos` (or `make chaos`) is the long run; `test_chaos.py` a short one for CI.
"""
