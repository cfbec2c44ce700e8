"""Who may do what in a PostgreSQL store.

May be imported by `store/maintenance`.
"""
