"""Micro-batches: how an epoch is split into them, exact to the example, and how they are loaded.

May be imported by `torch/api`, `torch/gradients`, `torch/rehearsal`, `torch/session`,
`torch/wrapped_model`, `huggingface`, `lightning`.
"""
