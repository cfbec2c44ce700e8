"""The part of a rehearsal in the script's own processes: what listens to the session, logs events and stops.

May be imported by `torch` itself only.
"""
