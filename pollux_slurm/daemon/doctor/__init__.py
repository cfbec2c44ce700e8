"""`pollux doctor`: problems of a site, and how to fix them.

May be imported by `cli`.
"""
