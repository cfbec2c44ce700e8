"""What may end a script, or keep it from training: lack of memory, errors, lost ranks, loops without a step.

May be imported by `torch/session`.
"""
