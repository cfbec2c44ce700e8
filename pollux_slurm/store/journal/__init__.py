"""The journal of reallocations (invariant 5), and the cost of one of them.

May be imported by `simulator`, `store/agent_api`, `store/jobs`, `store/security`.
"""
