"""Enact reallocations as a journaled state machine, and journal those that no decision asked for.

May be imported by `cli`.
"""
