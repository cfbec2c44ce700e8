"""The edge to Slurm: one protocol, its backends, and a private cluster for trying things."""
