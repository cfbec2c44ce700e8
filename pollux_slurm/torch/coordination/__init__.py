"""What ranks tell each other beside gradients: the side channel, and whether replicas differ.

May be imported by `torch/api`, `torch/boundary`, `torch/checkpoint`, `torch/session`,
`torch/wrapped_model`.
"""
