"""Whatever people see, before it has a form: columns with titles and kinds, tables, plots, documents.

May be imported by `cli`, `document/forms`, `now`, `report`, `simulator`, `web`.
"""
