"""The journal of reallocations (invariant 5), and what one of them has cost.

May be imported by `simulator`, `store/agent_api`, `store/jobs`, `store/security`.
"""
