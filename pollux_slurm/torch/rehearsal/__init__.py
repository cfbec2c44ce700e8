"""The side of a rehearsal that runs in the script's own processes: a session that looks, tells and stops."""
