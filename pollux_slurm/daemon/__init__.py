"""The daemon beside slurmctld: `round.py` observes, decides and enacts once, `loop.py` repeats it.

May be imported by `cli`.
"""
