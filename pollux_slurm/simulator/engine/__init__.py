"""The simulated cluster: its rounds, its jobs, and what moves and failures cost them.

May be imported by `cli`, `simulator/bound`, `simulator/experiments`, `simulator/policies`,
`simulator/policies/adaptive`, `simulator/results`, `simulator/site`.
"""
