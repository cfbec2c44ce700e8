"""Which candidates of each job can still be part of a better solution, by the dual prices.

With prices λ and bound L, every solution is worth L − Σ_j regret_j − λ·(what is unused). A job's regret is
the value of its best candidate less that of the one it gets, prices included. So a solution worth more than V
gives no job a candidate whose regret is L − V or more, and the searches skip such candidates.
"""

from __future__ import annotations

import math

import numpy as np

from pollux_slurm.policy.candidates.candidate import Candidate
from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.placed_state import State
from pollux_slurm.policy.pricing.dual_bound import Dual
from pollux_slurm.policy.pricing.relaxation import Relaxation


class PrunedCandidates:
    """The candidates of all jobs for the searches, made on demand.

    Only those with a regret below `limit` are kept: pass the bound less the value of a known solution.
    """

    def __init__(
        self, candidates: Candidates, relaxation: Relaxation, dual: Dual, *, limit: float = np.inf
    ) -> None:
        self._candidates = candidates
        self._bound = dual.bound
        self.limit = limit
        reduced = relaxation.reduced(dual.prices)
        self._regret = np.maximum.reduce(reduced, axis=1, keepdims=True, initial=-np.inf) - reduced
        # Rows of it as lists, of the jobs that were asked for: looked at one by one, they are sooner read.
        self._rows: dict[int, list[float]] = {}
        self._near: dict[int, list[tuple[float, Candidate]]] = {}

    def is_movable(self, job: int) -> bool:
        """Return whether a job's allocation may change."""
        return job < self._candidates.num_jobs and not self._candidates.settled[job]

    def regret(self, job: int, candidate: Candidate) -> float:
        """Return the regret of one candidate of a job."""
        return self._row(job)[candidate.column] + candidate.shortfall  # −1, the last, is what it has

    def _row(self, job: int) -> list[float]:
        found = self._rows.get(job)
        if found is None:
            found = self._rows[job] = self._regret[job].tolist()
        return found

    def near(self, job: int) -> list[tuple[float, Candidate]]:
        """Return (regret, candidate) of a job, the least regret first."""
        near = self._near.get(job)
        if near is None:
            candidates, last = self._candidates, len(self._row(job)) - 1
            near = self._near[job] = [
                (regret, candidates.candidate(job, column if column < last else -1))
                for column, regret in enumerate(self._row(job))
                if regret < self.limit
            ]
            near.sort(key=lambda pair: (pair[0], not pair[1].stays, -pair[1].value, pair[1].num_gpus))
        return near

    def slack(self, state: State) -> float:
        """Return λ·(what is unused) of a state: its gap to the bound less all regrets."""
        return self._bound - math.fsum(
            placed.candidate.value + self.regret(job, placed.candidate)
            for job, placed in enumerate(state.placed[: self._candidates.num_jobs])
            if placed is not None
        )

    def regretful(self, state: State) -> list[int]:
        """Return the jobs that could have something else and would rather, the unhappiest first."""
        found = [
            (self.regret(job, state.at(job).candidate), job)
            for job, settled in enumerate(self._candidates.settled.tolist())
            if not settled
        ]
        return [job for regret, job in sorted(found, key=lambda pair: (-pair[0], pair[1])) if regret > 0]
