"""The side of a rehearsal in the script's own processes: a session that looks, reports and stops.

May be imported by `torch` itself only.
"""
