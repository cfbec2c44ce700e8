"""`pollux run`: determines where a job's training processes run, starts them there, and resizes local runs.

May be imported by `cli`, `now`.
"""
