"""Step times: timestamps that do not block the device, and the micro-batches' times from them.

May be imported by `torch/api`, `torch/gradients`, `torch/session`.
"""
