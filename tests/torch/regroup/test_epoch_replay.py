"""Where no replica could ever join, the script is refused for it with the reason, and trains on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.torch.regroup import script
from tests.torch.regroup.members import Members

pytestmark = pytest.mark.torch


def test_that_a_script_that_communicates_between_loops_and_declares_no_epochs_is_refused(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "open").write_text("7")
    variant = script.Variant(has_epochs=False, schedule="step", evaluation="after")
    args = (str(tmp_path / "checkpoints-of-the-job"), str(gate), asdict(variant), 4, 70, None)
    members = Members(tmp_path, 1, script.train, *args)
    members.until(lambda: script.reached(gate) == 7, what="step 7")
    request = members.ask(2)
    members.until(lambda: members.folder.plan_after(0), what="the plan")
    (gate / "open").write_text("12")
    answer = members.until(lambda: members.answered(request), what="the answer", timeout_s=60)
    (gate / "open").write_text("1000")
    assert members.wait()["0"] == 0
    assert not answer.is_done
    assert "communicates outside of its loops" in answer.text
    assert "remaining_epochs_until" in answer.text
