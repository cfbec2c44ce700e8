"""Database access: URLs, engines, transactions, and values that both databases can store.

May be imported by `cli`, `launch`, `store/agent_api`, `store/jobs`, `store/journal`, `store/maintenance`,
`store/reporting`, `store/rounds`.
"""
