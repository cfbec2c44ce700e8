"""The training processes of one node: their environment, one on each GPU, watched until the last has ended.

May be imported by `agent/launch`, `cli`, `env`, `functions`, `rehearsal`, `torch`, `trackers`.
"""
