"""Promises: which jobs can be finished by the moments that their owners ask for, and with how many GPUs.

May be imported by `daemon`, `simulator`.
"""
