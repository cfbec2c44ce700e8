"""What `pollux db` does: making and upgrading the schema, checking it, pruning.

May be imported by `cli`.
"""
