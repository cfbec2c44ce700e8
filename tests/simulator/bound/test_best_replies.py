"""The cheapest schedule of a job on one GPU, beside a slow computation of each start."""

from __future__ import annotations

import numpy as np
import pytest

from pollux_slurm.simulator.bound.best_replies import BestReplies
from pollux_slurm.simulator.bound.speeds import Options

PRICES = np.array([0.0] * 2 + [0.3] * 4 + [0.0] * 14)
TRAINING_S = 150.0


def cost_of_start(turn: int, round_s: float, delay_s: float) -> float:
    """Return what a job pays that starts in a round and trains to its end."""
    begin_s, end_s = turn * round_s, turn * round_s + delay_s + TRAINING_S
    paid = 0.0
    for place, price in enumerate(PRICES.tolist()):
        held_s = min(end_s, (place + 1) * round_s) - max(begin_s, place * round_s)
        paid += price * max(held_s, 0.0)
    return end_s - begin_s + paid


@pytest.mark.parametrize(("round_s", "delay_s", "cells"), [(60.0, 29.5, 8), (30.0, 44.5, 10)])
def test_that_a_job_pays_at_most_a_cell_less_than_in_truth(
    round_s: float, delay_s: float, cells: int
) -> None:
    """It waits for cheaper rounds where that pays; a delay may be longer than a round."""
    options = Options(num_gpus=np.array([1]), epoch_s=np.array([[100.0, 50.0]]))
    model = BestReplies(options, round_s=round_s, delay_s=delay_s, cells_a_round=cells)
    found = model.start_costs(PRICES)
    rounds = range(len(PRICES) + 1)
    for turn in rounds:
        waits = (cost_of_start(later, round_s, delay_s) + (later - turn) * round_s for later in rounds[turn:])
        truth = min(waits)
        assert truth - 1.3 * round_s / cells <= found[turn] <= truth + 1e-9
