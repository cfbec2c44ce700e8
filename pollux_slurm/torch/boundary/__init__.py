"""The step boundary: all ranks agree, and write requested or periodic checkpoints.

May be imported by `torch/session`, `torch/wrapped_model`.
"""
