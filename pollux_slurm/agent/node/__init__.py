"""The training processes of one node: their environment, one on each GPU, watched until the last has ended.

May be imported by `agent/anchor`, `agent/launch`, `agent/step`, `cli`, `env`, `functions`, `rehearsal`,
`torch`, `trackers`.
"""
