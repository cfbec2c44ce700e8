"""The observe, decide, enact loop beside slurmctld: one round in `round.py`, all in `loop.py`.

May be imported by `cli`.
"""
