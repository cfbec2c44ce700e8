"""Replays traces through the daemon's own policy, with a clock instead of a cluster."""
