"""The forms of a document: terminal, HTML page, JSON, CSV. The first two show some of a table's rows at most.

May be imported by `cli`, `now`, `report`, `simulator`, `web`.
"""
