"""One wrapped model and its optimizers: deferred steps, learning rates, what is restored.

May be imported by `torch/api`, `torch/rehearsal`, `torch/session`.
"""
