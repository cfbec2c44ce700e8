"""One wrapped model and its optimizers: deferred steps, learning rates, checkpointed state.

May be imported by `huggingface`, `torch/api`, `torch/regroup`, `torch/rehearsal`, `torch/session`.
"""
