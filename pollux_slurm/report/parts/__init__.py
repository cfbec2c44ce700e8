"""The parts of reports: one subject each, tables and plots of it.

May be imported by `now`, `report` itself, `report/spans` and `web`.
"""
