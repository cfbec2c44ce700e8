"""What stands against a move: Slurm's refusals, jobs and limits that wait, the end of the job itself. Pure.

May be imported by `cli`, `daemon/enact`, `daemon/recovery`, `live`.
"""
