"""The forms of a document: terminal, HTML page, JSON, CSV.

May be imported by `cli`, `now`, `report`, `simulator`, `web`.
"""
