"""All candidates of all jobs, as arrays: what each job's terms allow, their values, and what they take.

Legend: J jobs, C columns (new allocations that could be given), R resources: the GPUs of each of T types,
then the GPUs of each limit, then the round's budget of reallocations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Allocation, Problem, ProblemJob
from pollux_slurm.policy.candidates.candidate import Candidate
from pollux_slurm.policy.candidates.in_place_moves import InPlaceMoves
from pollux_slurm.policy.objectives.generalized_mean import contribution
from pollux_slurm.policy.objectives.job_values import Scores, expected_remaining_s
from pollux_slurm.policy.objectives.restart_penalty import can_move_in_place
from pollux_slurm.policy.problem.allocation_shapes import gpu_bounds
from pollux_slurm.policy.problem.deterministic_rounding import round_to_bits
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Between two choices that the penalty makes worthless, the one with more speedup is better by this much.
_PREFERENCE = 1e-11


class Candidates:
    """The candidates of all jobs of a problem, and `Candidate` objects for those looked at one by one.

    `value` (J, C) is −inf where a column is not allowed; `stay_value` (J,) is what keeping what it has, or
    waiting, adds to the sum; `stay_use` (J, R) and `use` what it takes. `left_out` jobs follow the J, which
    are `num_jobs`: they take part in the placement only. Fewer GPUs than `promised` (J,) cost `broken_cost`
    (J,), which is part of these values.

    Where a column may be reached by requeue and in place (`in_place_moves`), `value` is the higher of both,
    so that bounds are bounds, and `sure_value` the lower. They are in `value_by_requeue` and in
    `value_in_place`, which is None where no job can move so, and −inf where that is impossible.
    """

    def __init__(
        self,
        problem: Problem,
        jobs: Sequence[ProblemJob],
        tables: SpeedupTables,
        scores: Scores,
        left_out: Sequence[ProblemJob] = (),
    ) -> None:
        self.jobs = tuple(jobs)
        self.all_jobs = (*self.jobs, *left_out)
        self.num_jobs = len(self.jobs)
        self.tables = tables
        self.scores = scores
        self._pauses = problem.moving.pauses
        self._options: dict[tuple[int, int], Candidate] = {}
        self._shapes = tables.columns.shapes
        self.settled = np.array(
            [job.pinned or _is_left_alone(problem, job, tables, row) for row, job in enumerate(jobs)],
            dtype=bool,
        )
        moving = any(map(can_move_in_place, self.jobs))
        self.in_place = InPlaceMoves(problem, self.all_jobs, tables) if moving else None
        self._find_allowed()
        self._find_values()
        self._resources(problem)

    def _find_allowed(self) -> None:
        """Find which columns a job may get; of them, `_nothing` are those that only pause it."""
        scores, tables, jobs = self.scores, self.tables, self.jobs
        low, most = gpu_bounds(jobs)
        most = np.minimum(most, tables.caps[:, None])
        rigid = [job.rigid for job in jobs]
        if any(rigid):
            most = np.where(np.array(rigid)[:, None], np.minimum(most, low), most)
        gpus = tables.num_gpus[None, :]
        allowed = (gpus >= low) & (gpus <= most) & (tables.speedup > 0)
        if scores.usable is not None:
            allowed &= scores.usable
        for row, job in enumerate(jobs):
            if job.held_off and job.current:
                allowed[row] &= gpus[0] < job.current.num_gpus
            if job.one_node:
                allowed[row] &= tables.num_nodes == 1
            for one in job.refused:
                most_gpus = np.inf if one.most_gpus is None else one.most_gpus
                is_refused = (gpus[0] >= one.least_gpus) & (gpus[0] <= most_gpus)
                allowed[row] &= ~(is_refused & (tables.num_nodes == one.num_nodes))
        self.waits = np.array([not job.current for job in jobs], dtype=bool)
        self._nothing: BoolArray | None = None
        if self._pauses:
            # No GPU at all is what a waiting job has already.
            self._nothing = (gpus == 0) & ~self.waits[:, None]
            allowed |= self._nothing
        self.allowed = allowed & ~self.settled[:, None]

    def _find_values(self) -> None:
        """Find what each column, what a job has, and nothing add to the sum."""
        scores, tables, waits = self.scores, self.tables, self.waits
        self.penalty = _by_column(scores.penalty)
        self.in_place_penalty = (
            None if scores.in_place_penalty is None else _by_column(scores.in_place_penalty)
        )
        # Beside the columns: its current allocation, and nothing.
        x = np.full((self.num_jobs, len(tables.num_gpus) + 2), scores.floor)
        x[:, :-2] += scores.scale * scores.speedup * (self.penalty + _PREFERENCE)
        x[:, -2] += scores.scale * scores.current_speedup
        worths = round_to_bits(scores.weight[:, None] * contribution(scores.exponent, x))
        by_requeue, stay, idle = worths[:, :-2], worths[:, -2], worths[:, -1]
        in_place = None if self.in_place is None else self._values_in_place(self.in_place)
        value = by_requeue if in_place is None else np.maximum(by_requeue, in_place)
        self.value = np.where(self.allowed, value, -np.inf)
        best = np.maximum(self.value.max(axis=1, initial=-np.inf), stay)
        # A job is worth no less than with nothing where it waits, or some column is not for it.
        best = np.where(waits | ~self.allowed.all(axis=1), np.maximum(best, idle), best)
        # The value if every job had its best candidate.
        self.most_worth = float(best.sum())
        # A waiting job costs more than all others could gain by its GPUs. Where running jobs may be paused,
        # this holds only for jobs without measurements, whose speedups are unknown.
        spread = float((best - idle).max(initial=0.0)) if scores.serves_all else 0.0
        waiting_cost = 2.0 * (self.num_jobs + 1) * spread
        self.waiting_cost: FloatArray = np.full(self.num_jobs, waiting_cost)
        broken = self._find_promises(waiting_cost)
        if broken is not None:
            self.value, by_requeue = self.value - broken[:, :-1], by_requeue - broken[:, :-1]
            in_place = None if in_place is None else in_place - broken[:, :-1]
        if self._nothing is not None:
            self.waiting_cost[(tables.rows >= 0).any(axis=1)] = 0.0
            self.value -= np.where(self._nothing, self.waiting_cost[:, None], 0.0)
        self.value_in_place, self.value_by_requeue, self.sure_value = in_place, self.value, self.value
        if in_place is not None:
            possible = np.isfinite(in_place)
            self.value_by_requeue = np.where(possible, by_requeue, self.value)
            self.sure_value = np.where(possible, np.minimum(by_requeue, in_place), self.value)
        self.stay_worth = np.where(waits, idle, stay)
        self.stay_value = np.where(waits, idle - self.waiting_cost, stay)
        if broken is not None:
            self.stay_value -= broken[:, -1]
        self.idle_worth = idle

    def _find_promises(self, waiting_cost: float) -> FloatArray | None:
        """Return what each column, and last what a job has, costs by a promise that it breaks, (J, C + 1).

        That is more than all jobs cost that could have the promised GPUs, and wait. Where no column keeps a
        promise, it counts for nothing. None without promises.
        """
        self.promised, self.broken_cost = np.zeros(self.num_jobs, dtype=np.int64), np.zeros(self.num_jobs)
        if not any(job.promised_gpus for job in self.jobs):
            return None
        gpus = self.tables.num_gpus
        promised = np.array([job.promised_gpus for job in self.jobs], dtype=np.int64)
        current = np.array([job.current.num_gpus for job in self.jobs], dtype=np.int64)
        possible = np.maximum(np.where(self.allowed, gpus[None, :], 0).max(axis=1, initial=0), current)
        self.promised = np.where(possible >= promised, promised, 0)
        self.broken_cost = np.where(self.promised > 0, waiting_cost * (1.0 + self.promised), 0.0)
        all_gpus = np.column_stack([np.broadcast_to(gpus, (self.num_jobs, len(gpus))), current])
        broken: FloatArray = np.where(all_gpus < self.promised[:, None], self.broken_cost[:, None], 0.0)
        return broken

    def gpus_of(self, columns: IntArray) -> IntArray:
        """Return the GPUs of one column of each job, (J,); those that it has for −1."""
        has = self.stay_gpus[: self.num_jobs].sum(axis=1)
        return np.where(columns < 0, has, self.tables.num_gpus[columns])

    def cost_of_broken(self, num_gpus: IntArray) -> FloatArray:
        """Return what promises cost that are broken by so many GPUs of each job, (J,)."""
        found: FloatArray = np.where(num_gpus < self.promised, self.broken_cost, 0.0)
        return found

    def _values_in_place(self, moves: InPlaceMoves) -> FloatArray:
        """Return the values of changes in place, (J, C); −inf where no placement can keep a wing."""
        scores, penalty = self.scores, self.in_place_penalty
        found = np.full(self.allowed.shape, -np.inf)
        rows = [row for row in moves.wings if row < self.num_jobs and not self.settled[row]]
        if penalty is not None and rows:
            x = scores.floor + scores.scale * scores.speedup[rows] * (penalty[rows] + _PREFERENCE)
            worths = round_to_bits(scores.weight[rows, None] * contribution(scores.exponent, x))
            possible = np.stack([moves.columns(row) for row in rows]) & self.allowed[rows]
            found[rows] = np.where(possible, worths, -np.inf)
        return found

    def _resources(self, problem: Problem) -> None:
        tables = self.tables
        kinds = len(tables.kinds)
        groups: list[tuple[BoolArray, int]] = []
        self.limit_names: list[str] = []
        all_jobs = self.all_jobs
        for limit in problem.limits:
            members = np.array(limit.members(all_jobs), dtype=bool)
            owned = sum(job.current.num_gpus for job, inside in zip(all_jobs, members, strict=True) if inside)
            if members.any():
                # A group above its limit keeps its GPUs, and gets no more.
                groups.append((members, max(limit.max_gpus, owned)))
                self.limit_names.append(f"{limit.kind} {limit.name}")
        self.members = np.zeros((len(all_jobs), len(groups)), dtype=bool)
        for group, (members, _) in enumerate(groups):
            self.members[:, group] = members
        # Running jobs count one each against the budget of reallocations when they change.
        self.moves = ~self.waits
        self.max_moves = problem.moving.max_reallocations
        self.group_budget = np.array([most for _, most in groups], dtype=np.int64)
        by_kind, kind_of_node = [[0] * kinds for _ in all_jobs], tables.kind_of_node
        for of_kinds, job in zip(by_kind, all_jobs, strict=True):
            for name, gpus in job.current.gpus_by_node:
                of_kinds[kind_of_node[name]] += gpus
        self.stay_gpus = np.array(by_kind, dtype=np.int64).reshape(len(all_jobs), kinds)

    def without(self, problem: Problem, names: Collection[str], left_out: Sequence[ProblemJob]) -> Candidates:
        """Return the candidates for all jobs but those named; `left_out` keep their allocations."""
        rows = np.array([row for row, job in enumerate(self.jobs) if job.job_id not in names], dtype=np.intp)
        tables, scores = self.tables, self.scores
        tables = dataclasses.replace(
            tables,
            **{
                name: getattr(tables, name)[rows]
                for name in (
                    "goodput",
                    "speedup",
                    "reference_goodput",
                    "one_gpu_goodput",
                    "current_speedup",
                    "caps",
                    "rows",
                    "ratio",
                )
            },
        )
        gain = scores.declared_gain
        scores = dataclasses.replace(
            scores,
            **{
                name: getattr(scores, name)[rows]
                for name in ("weight", "speedup", "current_speedup", "penalty")
            },
            units=None if scores.units is None else scores.units[rows],
            declared_gain=None if gain is None else lambda: gain()[rows],
            usable=None if scores.usable is None else scores.usable[rows],
            in_place_penalty=None if scores.in_place_penalty is None else scores.in_place_penalty[rows],
        )
        return Candidates(problem, [self.jobs[row] for row in rows.tolist()], tables, scores, left_out)

    @property
    def pause_column(self) -> int | None:
        """The column of no GPU at all, None where running jobs are not paused."""
        return int(np.flatnonzero(self.tables.num_gpus == 0)[0]) if self._pauses else None

    def candidate(self, job: int, column: int) -> Candidate:
        """Return one candidate of a job; column −1 is its current allocation, or nothing."""
        found = self._options.get((job, column))
        if found is None:
            self._options[job, column] = found = self._make_candidate(job, column)
        return found

    def _make_candidate(self, job: int, column: int) -> Candidate:
        if column < 0:
            current = self.all_jobs[job].current
            inside = job < self.num_jobs
            return Candidate(
                num_nodes=current.num_nodes,
                per_node=0,
                num_gpus=current.num_gpus,
                speedup=self.scores.current_speedup.item(job) if inside else 0.0,
                penalty=1.0,
                value=self.stay_value.item(job) if inside else 0.0,
                stays=True,
            )
        num_nodes, per_node, num_gpus, kind = self._shapes[column]
        value = self.value.item(job, column)
        penalty = self.penalty.item(job, column if self.penalty.shape[1] > 1 else 0)
        found = Candidate(
            num_nodes=num_nodes,
            per_node=per_node,
            num_gpus=num_gpus,
            speedup=self.scores.speedup.item(job, column),
            penalty=penalty,
            value=value,
            kind=kind,
            column=column,
            is_uneven=not per_node and num_gpus > 0,
        )
        if self.value_in_place is None or self.value_in_place[job, column] == -np.inf:
            return found
        by_requeue, in_place = self.value_by_requeue.item(job, column), self.value_in_place.item(job, column)
        found.value, found.shortfall = by_requeue, value - by_requeue
        other = found.other = dataclasses.replace(
            found,
            penalty=self._penalty(job, column, in_place=True),
            value=in_place,
            shortfall=value - in_place,
            in_place=True,
            other=found,
        )
        return other if in_place >= by_requeue else found

    def _penalty(self, job: int, column: int, *, in_place: bool = False) -> float:
        """Return f of a change to one column; −1: to an allocation that is like none."""
        of_way = self.in_place_penalty if in_place and self.in_place_penalty is not None else self.penalty
        if column < 0:
            return float(of_way[job].min(initial=1.0))
        return of_way.item(job, column if of_way.shape[1] > 1 else 0)

    def penalised(self, job: int, given: Allocation) -> float:
        """Return f·SPEEDUP of a job in any allocation, allowed or not, as the objective sees it."""
        if given == self.jobs[job].current:
            return float(self.scores.current_speedup[job])
        column = self.column_of(given) if given else -1
        in_place = self.in_place is not None and self.in_place.is_in_place(job, given)
        penalty = self._penalty(job, column, in_place=in_place)
        if column < 0:
            return penalty * self.scores.unit(job) * self.tables.speedup_of(job, given)
        return penalty * float(self.scores.speedup[job, column])

    def column_of(self, given: Allocation) -> int:
        """Return a column worth as much as an allocation; −1 where none is."""
        return next(iter(self.columns_of(given, exactly=False)), -1)

    def columns_of(self, given: Allocation, *, exactly: bool = True) -> list[int]:
        """Return the columns that an allocation belongs to, or, not `exactly`, that are worth as much."""
        tables = self.tables
        kinds = {tables.kind_of_node[node] for node in given.nodes}
        if len(kinds) != 1:
            return []
        found = (tables.kind == kinds.pop()) & (tables.num_gpus == given.num_gpus)
        found &= (tables.num_nodes > 1) == (given.num_nodes > 1)
        if exactly:
            shares = {gpus for _, gpus in given.gpus_by_node}
            share = shares.pop() if len(shares) == 1 else 0
            even = (tables.per_node == share) & (tables.num_nodes == given.num_nodes)
            found &= even | (tables.per_node == 0)
        return [int(column) for column in np.flatnonzero(found)]


def _by_column(penalty: FloatArray) -> FloatArray:
    return penalty if penalty.ndim == 2 else penalty[:, None]


def _is_left_alone(problem: Problem, job: ProblemJob, tables: SpeedupTables, row: int) -> bool:
    """Whether a running job is too young, or too short by its declaration or kind, to be worth moving."""
    if not job.current:
        return False
    if job.age_s < problem.moving.min_age_s:
        return True
    if problem.moving.min_remaining_s <= 0:
        return False
    alone, base = float(tables.one_gpu_goodput[row]), float(tables.reference_goodput[row])
    left_s = expected_remaining_s(job, alone)
    speed = float(tables.current_speedup[row]) * base
    if left_s is None or speed <= 0:
        return False
    return left_s * alone / speed < problem.moving.min_remaining_s
