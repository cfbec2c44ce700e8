"""What `pollux db` does: create, upgrade and check the schema, and prune.

May be imported by `cli`.
"""
