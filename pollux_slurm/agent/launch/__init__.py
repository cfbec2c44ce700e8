"""`pollux run`: starts a job's training processes, one on each GPU, and waits for them.

May be imported by `cli`, `env`, `functions`, `rehearsal`, `torch`, `trackers`.
"""
