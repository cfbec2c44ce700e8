"""After failures: starts that failed, moves that failed, commands that came late.

May be imported by `daemon/enact`.
"""
