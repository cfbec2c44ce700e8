"""Which jobs take part in a decision: valid ones, within their users' shares, the longest waiting first.

May be imported by `daemon`, `policy/explain`, `policy/promises`, `simulator`.
"""
