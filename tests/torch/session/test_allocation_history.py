"""The job's allocations over its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import pollux_slurm.torch as pt
from pollux_slurm.torch.session.allocation_history import AllocationHistory
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch


def history(run_number: int, num_gpus: int, num_nodes: int, times_s: list[float]) -> AllocationHistory:
    ticks = iter(times_s)
    return AllocationHistory(
        run_number=run_number, num_gpus=num_gpus, num_nodes=num_nodes, now_s=lambda: next(ticks)
    )


def test_that_a_move_costs_the_time_from_the_last_step_saved_to_the_first_one_after_it() -> None:
    first = history(0, 1, 1, [100.0, 101.0, 102.0])
    first.note_step(1)
    first.note_step(2)
    saved = first.state_dict()
    # This step is in no checkpoint.
    first.note_step(3)
    second = history(1, 8, 2, [141.0, 142.0])
    second.load_state_dict(saved)
    second.note_step(3)
    second.note_step(4)
    assert [
        (one.run_number, one.num_gpus, one.num_nodes, one.first_step, one.move_s)
        for one in second.allocations
    ] == [(0, 1, 1, 1, None), (1, 8, 2, 3, 40.0)]


def test_that_a_run_without_a_step_is_part_of_the_next_runs_move_and_clocks_may_differ() -> None:
    first, second = history(0, 1, 1, [100.0]), history(1, 4, 1, [])
    first.note_step(1)
    second.load_state_dict(first.state_dict())
    third = history(2, 2, 1, [99.0])
    third.load_state_dict(second.state_dict())
    third.note_step(2)
    assert [(one.run_number, one.move_s) for one in third.allocations] == [(0, None), (2, 0.0)]


def test_that_each_restart_of_a_job_is_in_its_history_and_its_steps_go_on(tmp_path: Path) -> None:
    for run in range(3):
        with joined(tmp_path) as session:
            trainee = Trainee()
            loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
            assert pt.finished_steps() == 2 * run
            for _ in pt.remaining_epochs_until(run + 1):
                for inputs, _ in loader:
                    before = pt.finished_steps()
                    trainee.step(inputs)
                    assert pt.finished_steps() == before + 1
            firsts = [(one.run_number, one.first_step) for one in session.history.allocations]
            assert firsts == [(number, 2 * number + 1) for number in range(run + 1)]
