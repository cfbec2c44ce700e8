"""The job's state as one file: the registered states, their names, how it is written and read.

May be imported by `huggingface`, `torch/api`, `torch/boundary`, `torch/data`, `torch/failures`,
`torch/rehearsal`, `torch/session`, `torch/wrapped_model`.
"""
