"""Log lines of the library, each case in its own process, since logging is configured per process."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A script that runs `arrange`, then logs lines of the library and of its own.
SCRIPT = """
import logging, logging.config, sys
import pollux_slurm.agent.measure.reporter
ours = logging.getLogger("pollux_slurm.agent.measure.reporter")
theirs = logging.getLogger("train")
{arrange}
from pollux_slurm.agent.environment.job_log import log_to_stderr
log_to_stderr()
log_to_stderr()
{after}
ours.info("moved")
ours.debug("a detail")
try:
    1 / 0
except ZeroDivisionError:
    ours.exception("two\\nlines")
theirs.warning("mine")
"""
OURS = ["moved", "two lines", "  Traceback (most recent call last):"]


def stderr_lines(arrange: str = "", after: str = "") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(arrange=arrange, after=after)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("arrange", "theirs"),
    [
        ("", "mine"),
        ("logging.basicConfig(format='ROOT %(message)s', level=logging.DEBUG)", "ROOT mine"),
        (
            "logging.config.dictConfig({'version': 1, 'root': {'level': 'ERROR'}})",
            "mine",
        ),
    ],
)
def test_that_every_line_of_ours_and_no_other_begins_with_pollux(arrange: str, theirs: str) -> None:
    lines = stderr_lines(arrange)
    ours = [line for line in lines if line.startswith("pollux: ")]
    assert lines == ([*ours, theirs] if "ERROR" not in arrange else ours)
    assert [line.removeprefix("pollux: ") for line in ours][:3] == OURS
    assert ours[-1] == "pollux:   ZeroDivisionError: division by zero"


def test_that_a_script_that_configures_logging_later_does_not_change_our_lines() -> None:
    lines = stderr_lines(after="logging.basicConfig(format='ROOT %(message)s')")
    assert [line for line in lines if not line.startswith("pollux: ")] == ["ROOT mine"]


def test_that_a_script_that_configures_our_logger_decides() -> None:
    arrange = (
        "handler = logging.StreamHandler(); handler.setFormatter(logging.Formatter('MINE %(message)s')); "
        "logging.getLogger('pollux_slurm').addHandler(handler)"
    )
    lines = stderr_lines(arrange)
    assert not any(line.startswith("pollux: ") for line in lines)
    assert "MINE two" in lines
