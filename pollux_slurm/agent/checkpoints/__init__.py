"""The folder of a job's checkpoints: which to resume from, which to keep, how often to write one, who may.

May be imported by `cli`, `daemon`, `launch`, `torch`.
"""
