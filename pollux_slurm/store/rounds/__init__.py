"""Rounds of the daemon: its lease, problems and decisions, and sums by day.

May be imported by `store/reporting`.
"""
