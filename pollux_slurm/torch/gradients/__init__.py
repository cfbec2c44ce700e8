"""Gradients: accumulation, reduction, the noise scale, and how the learning rate follows the batch.

May be imported by `torch/api`, `torch/boundary`, `torch/session`, `torch/wrapped_model`.
"""
