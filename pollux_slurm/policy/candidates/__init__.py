"""What each job could be given within its terms, what that takes of each resource, and what is placed so far.

May be imported by `policy/search`, `policy/explain`, `policy/pricing`.
"""
