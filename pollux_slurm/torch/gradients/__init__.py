"""Gradients: accumulation, reduction, the noise scale, and rules that scale the learning rate.

May be imported by `torch/api`, `torch/boundary`, `torch/session`, `torch/wrapped_model`.
"""
