"""One training process from `init_process_group` to its end: it ties the other folders together.

May be imported by `torch/api`, `torch/rehearsal`.
"""
