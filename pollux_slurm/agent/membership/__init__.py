"""Who is a member of a training that goes on, and how its members agree on the next membership.

May be imported by `agent/environment`, `launch`, `torch`.
"""
