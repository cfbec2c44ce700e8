"""The job's state as one file: who contributes, under which name, how it is written and read.

May be imported by `torch/api`, `torch/boundary`, `torch/session`.
"""
