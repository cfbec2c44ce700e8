"""Reports: what was over time, of a job, an account, the cluster, a shadow daemon or two spans; also frames.

May be imported by `cli`, `now`, `web`.

`parts` have one subject each, `spans` two spans of time beside each other.
"""
