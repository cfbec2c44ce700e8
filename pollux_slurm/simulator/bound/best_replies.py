"""What a job costs at least when GPUs have a price: a dynamic program over time, progress and GPUs.

A job pays 1 a second until it ends, and λ_r a second for each GPU that it holds in round r. It trains on one
of O options, numbers of GPUs with seconds for each epoch. It may pause, start again, and change its option at
the beginning of each round; each start and change costs a delay without progress, in which it holds its new
GPUs.

The state of a job on option o is the k-th cell of o: k·u seconds are left on o. A round takes q cells, so
what a run trains is exact. Where a run begins, what is left on its option is rounded down to a cell: less
is left than in truth, so costs can only become lower.

Legend: R rounds of Δ seconds; O options; E epochs; C cells of all options; δ the delay, of which m whole
rounds are held and γ = m·Δ − δ seconds are trained; u seconds of a cell, q = Δ/u.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from pollux_slurm.simulator.bound.speeds import Options

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_WAIT = -1


class BestReplies:
    """The cheapest ways of one kind of job.

    With `round_up`, what is left on an option is rounded up: costs are then near the truth, and no bound.
    """

    def __init__(
        self, options: Options, *, round_s: float, delay_s: float, cells_a_round: int, round_up: bool = False
    ) -> None:
        num_gpus, epoch_s = options.num_gpus, options.epoch_s
        self._round_s, self._delay_s, self._q = round_s, delay_s, cells_a_round
        self._cell_s = cell_s = round_s / cells_a_round
        self._held = max(math.ceil(delay_s / round_s), 1)
        trained_s = self._held * round_s - delay_s
        # Seconds left at the beginning of each epoch: on each option, and always on the fastest one.
        left = np.maximum(epoch_s, 1e-9)[:, ::-1].cumsum(axis=1)[:, ::-1]
        left = np.concatenate([left, np.zeros((len(left), 1))], axis=1)
        epochs = np.arange(left.shape[1])
        # Each option has cells before its k = 0, for what is left of a round in which the job ends.
        before = max(self._q, math.ceil(trained_s / cell_s) + 1)
        counts = np.floor(left[:, 0] / cell_s).astype(np.int64) + 1 + before
        ends = counts.cumsum()
        self._zero = ends - counts + before
        size = int(ends[-1]) + 1  # the last cell is that of a job that never started
        self._option = np.repeat(np.arange(len(counts)), counts)
        self._gpus = np.append(num_gpus[self._option], 0).astype(np.float64)
        self._option_gpus = num_gpus.astype(np.float64)
        cells = np.arange(size - 1) - self._zero[self._option]
        self._cells = np.append(cells, 0)
        at = np.zeros(size)
        for option in range(len(counts)):
            of_option = self._option == option
            at[:-1][of_option] = np.interp(
                np.maximum(cells[of_option], 0) * cell_s, left[option, ::-1], epochs[::-1]
            )
        self._fastest_left = np.interp(at, epochs, np.append(epoch_s.min(axis=0)[::-1].cumsum()[::-1], 0.0))
        # The cell of each option in which a job from any cell begins to train on it.
        remaining = [(np.interp(at, epochs, row) - trained_s) / cell_s for row in left]
        rounded = np.ceil(np.array(remaining) - 1e-9) if round_up else np.floor(np.array(remaining) + 1e-9)
        self._begins = (self._zero[:, None] + rounded).astype(np.intp)
        self._pads = np.flatnonzero(self._cells < 0)
        self._pad_s = self._cells[self._pads] * cell_s
        self._targets: list[npt.NDArray[np.int8]] = []
        self._stays: list[npt.NDArray[np.bool_]] = []

    @property
    def size(self) -> int:
        """Numbers that are computed in each round."""
        return self._begins.size

    def start_costs(self, prices: FloatArray, *, keep: bool = False) -> FloatArray:
        """Return the least cost of a job that was submitted in time for each round, (R + 1,).

        `prices` (R,) are λ; from the last round on, GPUs are free. Then a job is taken to change its option
        without delay. `keep` the choices, for `gpu_seconds`.
        """
        round_s, q = self._round_s, self._q
        stopped = self._fastest_left + self._delay_s
        # The costs of running jobs in the next rounds, and of each option's GPUs in the rounds of a delay.
        ahead: deque[FloatArray] = deque()
        for _ in range(self._held + 1):
            ahead.append(np.minimum(self._fastest_left, stopped))
            ahead[-1][self._pads] = self._pad_s
        hold = deque([np.full(len(self._option_gpus), round_s)] * self._held)
        found = np.empty(len(prices) + 1)
        found[-1] = stopped[-1]
        self._targets, self._stays = [], []
        best, entered = np.empty(len(stopped)), np.empty(len(stopped))
        target: npt.NDArray[np.int8] | None = None
        for turn in range(len(prices) - 1, -1, -1):
            hold.appendleft((1 + self._option_gpus * prices[turn]) * round_s)
            hold.pop()
            ahead.pop()
            following, far = ahead[0], ahead[-1]
            following[self._pads] = self._pad_s * (1 + self._gpus[self._pads] * prices[turn])
            costs = np.sum(hold, axis=0)
            best.fill(math.inf)
            if keep:
                target = np.zeros(len(best), dtype=np.int8)
            for option, begins in enumerate(self._begins):
                np.take(far, begins, out=entered)
                entered += costs[option]
                if target is not None:
                    target[entered < best] = option
                np.minimum(best, entered, out=best)
            waited = stopped + round_s
            stopped = np.minimum(waited, best)
            stay = np.full(len(best), math.inf)
            stay[q:-1] = following[: -1 - q]
            stay += (1 + self._gpus * prices[turn]) * round_s
            ahead.appendleft(np.minimum(stay, stopped))
            found[turn] = stopped[-1]
            if target is not None:
                target[waited <= best] = _WAIT
                self._targets.append(target)
                self._stays.append(stay <= stopped)
        return found

    def gpu_seconds(self, starts: IntArray, num_rounds: int) -> FloatArray:
        """Return the GPU seconds of all rounds, (R,), of jobs submitted in time for the rounds `starts`.

        They are of the last `start_costs` with `keep`. The delay must be no longer than a round.
        """
        used = np.zeros(num_rounds)
        at = np.full(len(starts), self._begins.shape[1] - 1)
        running, ended = np.zeros(len(starts), dtype=bool), starts >= num_rounds
        for turn in range(int(starts.min(initial=num_rounds)), num_rounds):
            stays, targets = self._stays[-1 - turn], self._targets[-1 - turn]
            running &= ~ended
            running &= stays[at]
            left_s = np.minimum(self._cells[at] * self._cell_s, self._round_s)
            used[turn] += (self._gpus[at] * left_s)[running].sum()
            goal = targets[at]
            enters = ~running & ~ended & (starts <= turn) & (goal != _WAIT)
            at[running] -= self._q
            begun = self._begins[goal[enters], at[enters]]
            before_s = np.minimum(begun - self._zero[goal[enters]], 0) * self._cell_s
            used[turn] += (self._option_gpus[goal[enters]] * (self._round_s + before_s)).sum()
            at[enters] = begun
            running |= enters
            ended |= running & (self._cells[at] <= 0)
        return used
