"""A lower bound on the average completion time of a workload, for any policy (docs/bound.md).

May be imported by `simulator/experiments`.
"""
