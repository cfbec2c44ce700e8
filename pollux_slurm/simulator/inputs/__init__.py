"""What a simulation begins with: applications as measured, and workloads.

May be imported by `cli`, `simulator/engine`, `simulator/experiments`, `simulator/policies`,
`simulator/results`, `simulator/site`.
"""
