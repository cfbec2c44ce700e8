"""Communication between ranks beside gradients: the side channel, and the comparison of replicas.

May be imported by `torch/api`, `torch/boundary`, `torch/checkpoint`, `torch/failures`,
`torch/session`, `torch/wrapped_model`.
"""
