"""Accounting check: GPU hours, states, starts and ends in the store against Slurm's own, job by job.

`make check-books` runs a mixture of jobs on a private Slurm, once without an accounting database and once
with one; `test_books.py` is the same in short.
"""
