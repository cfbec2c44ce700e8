"""What programs here ask of the operating system: processes, files that nobody else writes, connections.

May be imported by `agent`, `daemon`, `functions`, `launch`, `sandbox`, `simulator`, `trackers`, `web`.
"""
