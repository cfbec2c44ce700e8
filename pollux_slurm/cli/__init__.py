"""Typer commands: each parses its arguments, calls one function of the package, prints.

May be imported by `__main__`.
"""

from pollux_slurm.cli.app import main

__all__ = ["main"]
