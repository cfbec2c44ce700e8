"""Faults in a regroup, at each moment: no hang, no lost checkpoint, and the next start is exact."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.torch.ranks import run_ranks
from tests.torch.regroup import faults, script
from tests.torch.regroup.comparison import assert_same
from tests.torch.regroup.members import Members

pytestmark = pytest.mark.torch

VARIANT = script.VARIANTS["two models"]
NUM_EPOCHS = 4
# Where the training waits for the plan: the steps up to here are in no checkpoint but the regroup's.
AT = 7


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("reference")
    result: dict[str, Any] = run_ranks(folder, 1, script.train, None, None, asdict(VARIANT), NUM_EPOCHS)[0]
    return result


class _Faulty:
    """A run of three members with a fault, where newcomer 3 joins and those named leave."""

    def __init__(
        self, folder: Path, *, member: str, moment: str, fault: str, leaves: tuple[int, ...] = ()
    ) -> None:
        self._folder, gate = folder, folder / "gate"
        gate.mkdir()
        (gate / "open").write_text(str(AT))
        self._directory = str(folder / "checkpoints-of-the-job")
        self._args = (asdict(VARIANT), NUM_EPOCHS, 70, None)
        self.members = members = Members(
            folder, 3, faults.train, member, moment, fault, self._directory, str(gate), *self._args
        )
        members.until(lambda: script.reached(gate) == AT, what=f"step {AT}")
        request = members.ask(4 - len(leaves), leaves)
        members.until(lambda: members.folder.plan_after(0) or members.answered(request), what="the plan")
        (gate / "open").write_text(str(1 << 30))
        members.wait(timeout_s=120)
        self.answer = members.answered(request)
        assert not members.killed_for_hanging, members.output()

    def start_again(self) -> list[Any]:
        again = Members(self._folder, 2, script.train, self._directory, None, *self._args, restart_count=1)
        codes = again.wait()
        assert set(codes.values()) == {0}, again.output()
        return again.results()


# Who ends, after which part, who leaves, and whether another has the states then.
KILLED = [
    *[("3", part, (0,), True) for part in ("meet", "groups", "send states")],
    *[("2", part, (0,), True) for part in faults.PARTS[:-1]],
    # The successor of rank 0, which gets the states in the hand-over.
    *[("1", part, (0,), part in ("states", "commit")) for part in faults.PARTS],
    ("0", "states", (0,), False),
    ("0", "hand over", (0,), True),
    *[("0", part, (), False) for part in faults.PARTS],
    *[("3", part, (), part != "begin") for part in ("meet", "groups", "send states", "begin")],
]
# These run by default, the others in `make test-full`.
QUICK = {("2", "commit", (0,)), ("3", "meet", ())}


@pytest.mark.parametrize(
    ("member", "moment", "leaves", "is_saved"),
    [pytest.param(*case, marks=() if case[:3] in QUICK else pytest.mark.full) for case in KILLED],
)
def test_that_a_member_that_dies_in_a_regroup_costs_no_step_where_another_has_the_states(
    tmp_path: Path,
    reference: dict[str, Any],
    member: str,
    moment: str,
    leaves: tuple[int, ...],
    is_saved: bool,
) -> None:
    faulty = _Faulty(tmp_path, member=member, moment=moment, fault="killed", leaves=leaves)
    assert faulty.members.exit_codes[member] == -signal.SIGKILL
    for result in faulty.start_again():
        assert_same(result, reference, VARIANT)
        assert (result["allocations"][-1]["first_step"] > AT) == is_saved


STOPPED = [
    *[("3", part, (0,)) for part in ("before ready", "meet", "groups", "send states", "begin")],
    *[(member, part, (0,)) for member in ("1", "2") for part in faults.PARTS],
    *[("0", part, (0,)) for part in faults.PARTS[:3]],
    *[("0", part, ()) for part in faults.PARTS],
]


@pytest.mark.full
@pytest.mark.parametrize(("member", "moment", "leaves"), STOPPED)
def test_that_a_member_that_gets_sigterm_in_a_regroup_costs_no_step(
    tmp_path: Path, reference: dict[str, Any], member: str, moment: str, leaves: tuple[int, ...]
) -> None:
    faulty = _Faulty(tmp_path, member=member, moment=moment, fault="stopped", leaves=leaves)
    for result in faulty.members.results() or faulty.start_again():
        assert_same(result, reference, VARIANT)
        assert not faulty.members.results() or result["allocations"][0]["first_step"] == 1
        assert faulty.members.results() or result["allocations"][-1]["first_step"] > AT


@pytest.mark.full
@pytest.mark.parametrize("moment", ["before ready", "after ready"])
def test_that_a_newcomer_that_dies_before_it_joins_leaves_the_training_as_it_is(
    tmp_path: Path, reference: dict[str, Any], moment: str
) -> None:
    faulty = _Faulty(tmp_path, member="3", moment=moment, fault="killed")
    assert faulty.members.exit_codes == {"0": 0, "1": 0, "2": 0, "3": -signal.SIGKILL}
    assert faulty.answer is not None
    assert not faulty.answer.is_done
    for result in faulty.members.results():
        assert_same(result, reference, VARIANT)


def test_that_a_plan_that_is_withdrawn_at_the_boundary_leaves_the_training_as_it_is(
    tmp_path: Path, reference: dict[str, Any]
) -> None:
    faulty = _Faulty(tmp_path, member="0", moment="states", fault="withdrawn")
    assert set(faulty.members.exit_codes.values()) == {0}
    results = faulty.members.results()
    assert len(results) == 3
    for result in results:
        assert_same(result, reference, VARIANT)
        assert result["run_number"] == 0


def test_that_training_goes_on_until_a_commit_whose_answer_was_lost_is_known(
    tmp_path: Path, reference: dict[str, Any]
) -> None:
    faulty = _Faulty(tmp_path, member="0", moment="", fault="answer lost")
    assert faulty.members.exit_codes == {"0": 0, "1": 0, "2": 0, "3": 0}
    assert "the answer was lost" in faulty.members.output()
    results = faulty.members.results()
    assert len(results) == 4
    for result in results:
        assert_same(result, reference, VARIANT)
        assert result["run_number"] == 1
