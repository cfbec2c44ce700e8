"""The solver `search`: initial solutions, searches, and a proof where the problem is small.

May be imported by `policy/explain`.
"""
