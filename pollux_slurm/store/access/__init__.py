"""Database access: URLs, engines, transactions, and values that both databases can store.

May be imported by `agent`, `cli`, `store/agent_api`, `store/jobs`, `store/journal`, `store/maintenance`,
`store/reporting`, `store/rounds`.
"""
