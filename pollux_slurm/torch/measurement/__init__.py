"""Step times: timestamps that do not block the device, and T_grad and T_iter from them.

May be imported by `torch/api`, `torch/gradients`, `torch/session`.
"""
