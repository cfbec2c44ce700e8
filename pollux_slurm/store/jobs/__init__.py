"""Jobs as the daemon registers, observes and reads them: models, allocation intervals, past moves.

May be imported by `store/agent_api`, `store/maintenance`, `store/reporting`, `store/rounds`,
`store/security`.
"""
