"""What a run measures, the fit and the choice of batch made of it, and its reports.

May be imported by `torch`.
"""
