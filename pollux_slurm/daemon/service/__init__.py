"""The daemon as a service: its lease and privileges, metrics and health, systemd.

May be imported by `cli`, `daemon/enact`.
"""
