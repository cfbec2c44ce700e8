"""The training processes of one node: one on each GPU, in a container or not, watched until all have ended.

May be imported by `cli`, `functions`, `launch/anchor`, `launch/run`, `launch/step`, `rehearsal`.
"""
