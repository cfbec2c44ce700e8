"""`pollux run`: the processes of a job's run, from the batch script to each GPU.

May be imported by `cli`, `env`, `rehearsal`, `torch`.
"""
