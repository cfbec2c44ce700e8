"""Commands about a user's own jobs.

May be imported by `cli/top`, which shows the same texts.
"""
