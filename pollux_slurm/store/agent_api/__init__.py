"""What a job may write and read: reports and polls, checked before anything is stored.

May be imported by `agent`, `store/security`.
"""
