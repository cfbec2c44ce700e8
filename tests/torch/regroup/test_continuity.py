"""All states are the same on every member after a regroup as they were on rank 0 before, to the last bit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import pollux_slurm.torch as pt
from pollux_slurm.agent.measure.reporter import Reporter
from pollux_slurm.torch.coordination.plain_data import to_plain
from pollux_slurm.torch.session import regrouping
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.regroup import script
from tests.torch.regroup.members import Members

pytestmark = pytest.mark.torch
AT = 23


class _OfRank0(pt.State):
    """What a script keeps on rank 0 alone: how many batches that has seen."""

    def __init__(self) -> None:
        super().__init__("of rank 0")
        self.count = 0

    def state_dict(self) -> Mapping[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


def train_and_keep(folder: str, *args: Any) -> dict[str, Any]:
    """Train as `script.train`; write all states at the begin and at the end of each regroup."""
    end = regrouping.RegroupTimes.end
    kept: list[_OfRank0] = []
    wait_at_gate = script.wait_at_gate

    def ended(times: regrouping.RegroupTimes, part: str) -> None:
        end(times, part)
        if part in ("states", "begin"):
            member = os.environ["POLLUX_MEMBER"]
            torch.save(_states(), Path(folder) / f"{part}-{member}-of-{dist.get_rank()}.pt")

    def wait(gate: Path | None, num_steps: int) -> None:
        if dist.get_rank() == 0:
            kept[0].count += 1
        wait_at_gate(gate, num_steps)

    def loader(variant: script.Variant, length: int) -> pt.AdaptiveDataLoader:
        kept.append(_OfRank0())
        return make_loader(variant, length)

    make_loader = script.make_loader
    regrouping.RegroupTimes.end = ended  # type: ignore[method-assign]
    script.wait_at_gate, script.make_loader = wait, loader
    return script.train(*args)


def _states() -> dict[str, Any]:
    found = {name: find() for name, find in current_session().checkpointer._states.items()}
    plain = {name: to_plain(state.state_dict(), name) for name, state in found.items() if state is not None}
    # Each replica's own clock.
    del plain["pollux/allocations"]["last_step_at"]
    return plain


def _assert_same(found: Any, expected: Any, path: str) -> None:
    assert type(found) is type(expected), path
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), path
    elif isinstance(expected, Mapping):
        assert list(found) == list(expected), path
        for key in expected:
            _assert_same(found[key], expected[key], f"{path}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), path
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            _assert_same(one, other, f"{path}/{index}")
    else:
        assert found == expected, path


@pytest.mark.parametrize(
    ("leaves", "before", "after"),
    [
        ((0,), "states-0-of-0", ["begin-1-of-0", "begin-2-of-1"]),
        pytest.param((1,), "states-0-of-0", ["begin-0-of-0", "begin-2-of-1"], marks=pytest.mark.full),
    ],
)
def test_that_every_state_goes_on_unchanged(
    tmp_path: Path, leaves: tuple[int, ...], before: str, after: list[str]
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "open").write_text(str(AT))
    variant = script.Variant(
        kind="adam", schedule="step", num_models=2, accumulates=True, max_batch_size=48, source="sampler"
    )
    args = (str(tmp_path / "checkpoints-of-the-job"), str(gate), asdict(variant), 8, 70, None)
    members = Members(tmp_path, 2, train_and_keep, str(tmp_path), *args)
    members.until(lambda: script.reached(gate) == AT, what=f"step {AT}")
    members.ask(2, leaves)
    members.until(lambda: members.folder.plan_after(0), what="the plan")
    (gate / "open").write_text(str(1 << 30))
    codes = members.wait()
    assert set(codes.values()) == {0}, members.output()
    expected = torch.load(tmp_path / f"{before}.pt", weights_only=True)
    # Step times were measured, the noise scale, a batch chosen, and a loop is under way.
    assert expected["pollux/measured"]["profile"]["situations"]
    assert expected["of rank 0"]["count"] > AT - 3
    for name in after:
        found = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        _assert_same(found, expected, name)


def train_and_hear(*args: Any) -> dict[str, Any]:
    """Train as `script.train`; rank 0 hears that seven examples fit for jobs of its kind."""

    for name, answer in (("has_answer", True), ("fitting_atomic", 7)):
        # What the reporter itself sets is no answer: it has no store.
        setattr(Reporter, name, property(lambda _, answer=answer: answer, lambda *_: None))
    limits = {}

    def loader(variant: script.Variant, length: int) -> pt.AdaptiveDataLoader:
        limits["loader"] = made = make_loader(variant, length)
        return made

    make_loader, script.make_loader = script.make_loader, loader
    return {**script.train(*args), "largest": limits["loader"].limits.max_atomic}


@pytest.mark.parametrize("leaves", [(0, 1), (1, 2)])
def test_that_all_replicas_know_what_fits_by_their_kind(tmp_path: Path, leaves: tuple[int, ...]) -> None:
    """Also where rank 0, which knows, leaves while another joins. With two replicas, each has eight."""
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "open").write_text(str(AT))
    args = (str(tmp_path / "checkpoints-of-the-job"), str(gate), asdict(script.Variant()), 8, 70, None)
    members = Members(tmp_path, 3, train_and_hear, *args)
    members.until(lambda: script.reached(gate) == AT, what=f"step {AT}")
    members.ask(2, leaves)
    members.until(lambda: members.folder.plan_after(0), what="the plan")
    (gate / "open").write_text(str(1 << 30))
    codes = members.wait()
    assert set(codes.values()) == {0}, members.output()
    assert [result["largest"] for result in members.results()] == [7, 7]
