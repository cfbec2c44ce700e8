"""Step times of a run, the model fitted to them, the choice of the batch size, and the reports.

May be imported by `torch`.
"""
