"""Prices of shared resources: what jobs would buy at them, and the upper bound that they prove.

May be imported by `policy/exact`.
"""
