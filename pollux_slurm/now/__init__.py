"""What is now, and why, for people: jobs, nodes, the daemon, decisions, also past ones; facts and sentences.

May be imported by `cli`, `daemon`, `web`.
"""
