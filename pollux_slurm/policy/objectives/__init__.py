"""What a decision maximises: the objectives, the restart penalty, the multi-node cap, the packing preference.

May be imported by `daemon`, `policy/candidates`, `policy/explain`, `policy/participation`, `policy/promises`,
`simulator`.
"""
