"""What a round reads: the cluster picture from Slurm and the store, and events that trigger a round.

May be imported by `cli`, `daemon/decide`, `daemon/doctor`, `daemon/enact`, `daemon/obstacles`,
`daemon/recovery`, `daemon/service`.
"""
