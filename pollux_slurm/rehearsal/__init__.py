"""`pollux rehearse`: run a user's script on this machine, move it for real, and say what a cluster would see.

Needs neither Slurm nor a store, and imports no torch: the script's own processes do the looking.
"""
