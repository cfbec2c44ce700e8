"""The step boundary: all ranks agree, and write requested or periodic checkpoints.

May be imported by `torch/failures`, `torch/rehearsal`, `torch/session`, `torch/wrapped_model`.
"""
