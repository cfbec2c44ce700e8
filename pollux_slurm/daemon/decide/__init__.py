"""Build the scheduling problem from the cluster picture, and moves from the decision. Pure.

May be imported by `daemon/enact`, `daemon/service`.
"""
