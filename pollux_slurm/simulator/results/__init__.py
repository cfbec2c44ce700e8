"""What became of a simulation: records, completion times, fairness, files.

May be imported by `cli`, `simulator/experiments`.
"""
