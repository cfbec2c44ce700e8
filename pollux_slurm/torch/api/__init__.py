"""What a script holds: loader, model, epochs, accumulators and states of its own. `torch` exports them.

May be imported by `torch/rehearsal`.
"""
