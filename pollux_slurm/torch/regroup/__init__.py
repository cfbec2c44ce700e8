"""The parts of a regroup: who waits to join, where the members meet, how the state reaches newcomers.

May be imported by `torch/api`, `torch/boundary`, `torch/failures`, `torch/rehearsal`, `torch/session`.
"""
