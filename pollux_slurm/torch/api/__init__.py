"""The objects that a script uses: loader, model, epochs, accumulators, states. `torch` exports them.

May be imported by `torch/rehearsal`, `huggingface`, `lightning`.
"""
