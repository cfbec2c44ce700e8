"""Recovery: from failed starts, failed moves, and late commands.

May be imported by `daemon/enact`.
"""
