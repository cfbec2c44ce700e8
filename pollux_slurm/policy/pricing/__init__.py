"""Prices of shared resources: the jobs' choices at them, and the upper bound that they prove.

May be imported by `policy/search`.
"""
