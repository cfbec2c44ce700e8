"""Step times: timestamps that do not block the device, and the micro-batches' times from them. Precision.

May be imported by `torch/api`, `torch/gradients`, `torch/rehearsal`, `torch/session`, `torch/wrapped_model`.
"""
