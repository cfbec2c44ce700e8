"""Commands about a user's own jobs.

May be imported by `cli` itself only.
"""
