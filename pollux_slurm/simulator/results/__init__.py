"""The results of a simulation: records of jobs and rounds, summaries, fairness, files.

May be imported by `cli`, `simulator/experiments`.
"""
