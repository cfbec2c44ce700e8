"""The simulated cluster: its clock, its jobs, and what moves and failures cost them.

May be imported by `cli`, `simulator/experiments`, `simulator/policies`, `simulator/results`,
`simulator/site`.
"""
