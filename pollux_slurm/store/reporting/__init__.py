"""Queries of the reporting views, with one row class per view. Read-only.

May be imported by `cli`, `report`, `web`.
"""
