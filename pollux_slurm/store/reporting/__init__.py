"""Questions to the reporting views, one class of rows for each view. Read-only.

May be imported by `cli`, `report`.
"""
