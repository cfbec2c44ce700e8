"""Typer commands: each parses its arguments, calls one function of the package, prints."""

from pollux_slurm.cli.app import main

__all__ = ["main"]
