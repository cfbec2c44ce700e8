"""Reaching a database: URLs, engines, transactions, and what makes values fit for it.

May be imported by `agent`, `cli`, `store/agent_api`, `store/jobs`, `store/journal`, `store/maintenance`,
`store/reporting`, `store/rounds`.
"""
