"""The session of one training process, from `init_process_group` to its end. It uses all other folders.

May be imported by `torch/api`, `torch/rehearsal`, `huggingface`, `lightning`, `trackers`.
"""
