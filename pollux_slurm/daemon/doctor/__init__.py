"""What of a site would make trouble, and what to change.

May be imported by `cli`.
"""
