"""A report as values, and its forms: page, terminal, JSON, CSV.

May be imported by `cli`, `report/parts`, `report/spans`, `web`.
"""
