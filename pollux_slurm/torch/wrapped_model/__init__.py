"""One wrapped model and its optimizers: deferred steps, learning rates, checkpointed state.

May be imported by `torch/api`, `torch/rehearsal`, `torch/session`.
"""
