"""Between two steps: the ranks agree, and write the checkpoint that was requested.

May be imported by `torch/session`, `torch/wrapped_model`.
"""
