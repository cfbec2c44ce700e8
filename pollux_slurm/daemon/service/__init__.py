"""The daemon as a service: lease, privileges, metrics and health, systemd.

May be imported by `cli`, `daemon/doctor`, `daemon/enact`.
"""
