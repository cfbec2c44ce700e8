"""What each job could be given, what that takes of each resource, and what is placed so far.

May be imported by `policy/search`, `policy/explain`, `policy/pricing`.
"""
