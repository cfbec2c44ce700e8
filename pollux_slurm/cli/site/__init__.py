"""Commands for who runs the daemon and its store.

May be imported by `cli` itself only.
"""
