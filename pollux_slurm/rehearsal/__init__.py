"""`pollux rehearse`: runs a user's script on this machine and moves it for real, before a cluster does.

May be imported by `cli`.

Needs neither Slurm nor a store, and imports no torch: the script's own processes observe the training.
"""
