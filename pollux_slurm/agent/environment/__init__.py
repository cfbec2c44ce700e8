"""What a training process is told of its job, by variables and files: who sets it, and who reads it there.

May be imported by `cli`, `env`, `functions`, `launch`, `torch`, `trackers`.
"""
