"""The journal of reallocations, and the cost of one of them.

May be imported by `simulator`, `store/agent_api`, `store/jobs`, `store/reporting`,
`store/security`.
"""
