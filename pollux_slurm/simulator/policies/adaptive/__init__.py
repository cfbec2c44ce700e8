"""Policies under which jobs tune their batch, and the simulated agents that do so.

May be imported by `simulator/policies`.
"""
