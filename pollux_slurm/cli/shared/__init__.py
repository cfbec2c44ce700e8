"""Helpers of several commands: settings, stores, durations, problem files, texts about jobs.

May be imported by `cli/jobs`, `cli/simulate`, `cli/site`, `cli/top`.
"""
