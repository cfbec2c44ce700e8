"""A long script, whatever is in it, costs no more than its length.

With a cost that grows with the square of the length, some of these take a minute each.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.launch.kind import kind_of
from pollux_slurm.launch.submit.other_launchers import launcher_without_run, refusal_of_script
from pollux_slurm.launch.submit.request_warnings import signal_warnings
from pollux_slurm.slurm.sbatch.batch_script import directive_words, parse_script
from pollux_slurm.slurm.sbatch.options import GivenOption, parse_directives
from pollux_slurm.slurm.sbatch.request import SbatchRequest
from pollux_slurm.store.access.secrets_in_url import lines_with_passwords

LENGTH = 100_000
WITH_SIGNAL = SbatchRequest(
    command_line=(GivenOption(name="signal", value="B:USR1@60", words=("--signal=B:USR1@60",)),),
    environment=(),
    directives=(),
)


@pytest.mark.parametrize(
    "text",
    [
        "\n",
        " ",
        "#",
        "\\\n",
        "pollux run ",
        "pollux run",
        "postgres",
        "postgresql+",
        "//a:",
        "x=",
        "a.",
        "a-",
    ],
)
def test_that_a_text_that_is_repeated_costs_no_more_than_others(text: str) -> None:
    body = text * (LENGTH // len(text))
    assert refusal_of_script(body) is None
    assert launcher_without_run(body) is None
    assert lines_with_passwords(body) == []
    assert len(signal_warnings(WITH_SIGNAL, body)) == 1
    assert len(kind_of(body, folder=Path())) == 16
    assert parse_script(f"#!/bin/sh\n{body}", source="x").directives == ()
    assert parse_directives(directive_words(f"-{body}")) is not None
