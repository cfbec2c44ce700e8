"""From the picture to a scheduling problem, and from its answer to moves. Pure.

May be imported by `daemon/enact`, `daemon/service`.
"""
