"""Run `pollux` inside this process: modules are imported once, and a traceback is visible."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from dataclasses import dataclass
from unittest import mock

import typer.main

from pollux_slurm.cli import main

# Typer builds all commands anew at each call, which takes as long as most of them do.
_commands = functools.cache(typer.main.get_command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def pollux(*arguments: str) -> Done:
    """Return what a command prints and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["pollux", *arguments]),
        mock.patch.object(typer.main, "get_command", _commands),
    ):
        try:
            main()
        except SystemExit as error:
            code = error.code
    assert isinstance(code, int)
    return Done(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())
