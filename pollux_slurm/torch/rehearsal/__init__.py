"""The part of a rehearsal in the script's own processes: a session that observes, logs events and stops.

May be imported by `torch` itself only.
"""
