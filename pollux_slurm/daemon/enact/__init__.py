"""Reallocations as a journaled state machine, and what is journaled whatever a round decides.

May be imported by `cli`.
"""
