"""What stands against one job's move: jobs and limits that wait, what was refused, the job's own end. Pure.

May be imported by `cli`, `daemon/enact`, `daemon/recovery`.
"""
