"""What a simulation begins with: applications as measured, and workloads.

May be imported by `cli`, `simulator/bound`, `simulator/engine`, `simulator/experiments`,
`simulator/policies`, `simulator/policies/adaptive`, `simulator/results`, `simulator/site`.
"""
