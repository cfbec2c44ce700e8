"""The observe, decide, enact loop beside slurmctld."""
