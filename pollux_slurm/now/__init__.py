"""What is now, for people: jobs, nodes, the daemon, decisions; the facts, and the sentences about them.

May be imported by `cli`, `daemon`, `web`.
"""
