"""What a round sees: Slurm and the store as one picture, and events that call for a round.

May be imported by `cli`, `daemon/decide`, `daemon/doctor`, `daemon/enact`, `daemon/recovery`,
`daemon/service`.
"""
