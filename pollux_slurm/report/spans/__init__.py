"""Two spans of time beside each other: a site before the daemon served it, and after.

May be imported by `cli`.
"""
