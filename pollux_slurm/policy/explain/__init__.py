"""Why each job gets what it gets (invariant 9).

May be imported by `store`.
"""
