"""What is maximised: the objectives, the restart penalty, caps and preferences.

May be imported by `policy/candidates`, `policy/participation`, `simulator`.
"""
