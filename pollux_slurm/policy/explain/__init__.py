"""Explanations: why each job gets its allocation, and what keeps it from more.

May be imported by `store`.
"""
