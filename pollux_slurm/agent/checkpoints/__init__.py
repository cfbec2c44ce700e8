"""The folder of a job's checkpoints: which one to resume from, how often to write one, who may write there.

May be imported by `cli`, `daemon`, `launch`, `torch`.
"""
