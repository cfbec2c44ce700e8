"""How a layout is passed into the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.agent.environment.layout import RunLayout
from pollux_slurm.errors import LaunchError

UNEVEN = RunLayout(
    nodes=(("n0", 4), ("n3", 1)),
    master_addr="10.0.0.1",
    master_port=24600,
    secret="of this run",
    uses_gpus=True,
    job_id="12",
    exit_file=Path("/shared/it's here/12.exit"),
    kill_after_s=3.5,
)


def test_that_a_layout_is_decoded_as_it_was_encoded() -> None:
    assert RunLayout.decode(UNEVEN.encode()) == UNEVEN
    local = RunLayout(nodes=(("localhost", 1),), master_addr="127.0.0.1", master_port=1, secret="s")
    assert RunLayout.decode(local.encode()) == local
    assert "\n" not in UNEVEN.encode()


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "null", "[" * 100_000, UNEVEN.encode()[:-5], UNEVEN.encode().replace("4", "0")),
        UNEVEN.encode().replace(f'"port":{UNEVEN.master_port}', '"port":Infinity'),
    ],
)
def test_that_a_malformed_layout_is_one_clear_line(text: str) -> None:
    with pytest.raises(LaunchError, match="POLLUX_STEP is malformed"):
        RunLayout.decode(text)
