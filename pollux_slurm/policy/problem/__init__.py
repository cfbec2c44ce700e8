"""What follows from a problem before any search: nodes, shapes of allocations, speedup tables.

May be imported by `cli`, `daemon`, `policy/candidates`, `policy/search`, `policy/explain`,
`policy/objectives`, `policy/participation`, `policy/pricing`, `policy/promises`, `simulator`, `store`.
"""
