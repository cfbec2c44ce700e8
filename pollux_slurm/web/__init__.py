"""`pollux web`: a read-only page over the store, rendered here, without a request to anywhere else.

May be imported by `cli`.
"""
