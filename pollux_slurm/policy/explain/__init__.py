"""Explanations: why each job gets its allocation, and what keeps it from more (invariant 9).

May be imported by `store`.
"""
