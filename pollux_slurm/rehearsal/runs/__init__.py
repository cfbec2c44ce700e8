"""The runs of a rehearsed script: where they are stopped, their processes, and what they have logged.

May be imported by `cli`, `rehearsal`.
"""
