"""The picture of now, for people: daemon, GPUs by node, jobs, moves and decisions, and their words.

May be imported by `cli`, `web`.
"""
