"""What a user asks of sbatch: script, command line and environment, taken apart as sbatch does.

May be imported by `agent`, `cli`, `daemon`.
"""
