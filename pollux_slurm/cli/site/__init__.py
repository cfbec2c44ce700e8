"""Commands for the admins of the daemon and its store.

May be imported by `cli` itself only.
"""
