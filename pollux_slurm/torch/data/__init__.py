"""Micro-batches: how an epoch is cut into them, exact to the sample, and where they come from.

May be imported by `torch/api`, `torch/gradients`, `torch/rehearsal`, `torch/session`,
`torch/wrapped_model`.
"""
