"""What runs inside a job without torch: launcher, submission, profile, reporter.

May be imported by `rehearsal`, `torch`.
"""
