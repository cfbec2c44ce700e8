"""The folder of a job's checkpoints: which one counts, how often to write one, who may.

May be imported by `agent/launch`, `daemon`, `torch`.
"""
