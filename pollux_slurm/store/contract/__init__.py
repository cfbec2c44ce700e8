"""The guarantees of every backend, and the types that its callers exchange with it.

May be imported by `agent`, `cli`, `daemon`, `functions`, `launch`, `now`, `report`, `simulator`,
`store/agent_api`, `store/jobs`, `store/journal`, `store/reporting`, `store/rounds`, `store/schema`,
`store/security`, `torch`, `web`.
"""
