"""The `pollux` command, with typer: each command parses its arguments, calls the package, and prints.

May be imported by `__main__`.
"""

from pollux_slurm.cli.app import main

__all__ = ["main"]
