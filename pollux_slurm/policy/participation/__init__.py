"""Which jobs take part in a decision, with which share of their user's, and who has waited too long.

May be imported by `daemon`, `policy/explain`, `simulator`.
"""
