"""`pollux_slurm.submit`: Python functions as adaptive jobs, from a script or a notebook.

The package's `__getattr__` imports it when it is used.
"""
