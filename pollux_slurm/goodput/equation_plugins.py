"""Throughput equations: the paper's, and others that a package may add. Chosen by name.

An `Equation` is fitted to observations and predicts step times. The agent uses the one that the job's
settings name (`[agent] throughput_equation`). Reports contain its `projected` θ, so that store, policy and
simulator need no other equation. `PolluxEquation` is the paper's. `FormulaEquation` fits any formula.

    class Racks(FormulaEquation):
        name = "racks"
        ...

A package registers one as an entry point, which is loaded when a job names it:

    [project.entry-points."pollux_slurm.throughput_equations"]
    racks = "mypackage.equations:Racks"
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

import numpy as np
import numpy.typing as npt

from pollux_slurm.errors import ConfigError
from pollux_slurm.goodput.checks import MAX_TIME_S
from pollux_slurm.goodput.fit import FitResult, fit_throughput, is_usable
from pollux_slurm.goodput.fit_loss import SMALLEST_S
from pollux_slurm.goodput.observation import Observation
from pollux_slurm.goodput.throughput_model import gradient_time_s, iteration_time_s
from pollux_slurm.model import ThroughputParameters

FloatArray = npt.NDArray[np.float64]

ENTRY_POINTS = "pollux_slurm.throughput_equations"
DEFAULT = "pollux"
_MAX_EVALUATIONS = 60
# The weight of configurations that the job was not measured on, in a projection.
_UNMEASURED_WEIGHT = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Situations:
    """R situations as columns: N nodes, K replicas, m examples of a micro-batch."""

    num_nodes: FloatArray
    num_gpus: FloatArray
    atomic_batch_size: FloatArray

    @classmethod
    def of(cls, observations: Iterable[Observation]) -> Situations:
        """Return the situations of the observations."""
        rows = [(seen.num_nodes, seen.num_gpus, seen.atomic_batch_size) for seen in observations]
        columns = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        return cls(num_nodes=columns[0], num_gpus=columns[1], atomic_batch_size=columns[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class EquationFit:
    """An equation's parameters, in the order of their names, and how well they fit.

    `error` is the weighted root mean squared log error over both times. `reason` is why nothing new was
    fitted; `values` are then the previous ones, or None.
    """

    values: tuple[float, ...] | None
    error: float | None
    reason: str | None


class Equation(ABC):
    """A formula for the time of a step, whose parameters are fitted. Stateless: parameters are passed in."""

    name: str
    parameter_names: tuple[str, ...]

    @abstractmethod
    def fit(
        self, observations: Sequence[Observation], *, previous: tuple[float, ...] | None = None
    ) -> EquationFit:
        """Return parameters fitted to `observations`. Odd data never raise an error, but set `reason`."""

    @abstractmethod
    def times_s(self, values: Sequence[float], at: Situations) -> tuple[FloatArray, FloatArray]:
        """Return, for each situation, the seconds of a micro-batch without and with synchronisation."""

    def projected(
        self, values: tuple[float, ...], observations: Sequence[Observation]
    ) -> ThroughputParameters | None:
        """Return the θ that fits this equation's predictions for measured situations and twice the replicas.

        The scheduler uses it. None where the equation predicts nothing usable.
        """
        usable = [seen for seen in observations if is_usable(seen)]
        if not usable:
            return None
        sizes = sorted({seen.atomic_batch_size for seen in usable})
        places = {(seen.num_nodes, seen.num_gpus) for seen in usable} | {(1, 1)}
        most_nodes, most_gpus = max(place[0] for place in places), max(place[1] for place in places)
        places |= {(1, 2), (min(most_nodes + 1, 2 * most_gpus), 2 * most_gpus)}
        # With a second size, T_grad determines both α_g and β_g.
        chosen = sorted({*sizes[:8], sizes[-1], 2 * sizes[-1]})
        grid = [(n, k, m) for n, k in sorted(places) for m in chosen]
        measured = {(seen.num_nodes, seen.num_gpus) for seen in usable}
        at = Situations(
            num_nodes=np.array([row[0] for row in grid], dtype=np.float64),
            num_gpus=np.array([row[1] for row in grid], dtype=np.float64),
            atomic_batch_size=np.array([row[2] for row in grid], dtype=np.float64),
        )
        with np.errstate(all="ignore"):
            alone, last = self.times_s(values, at)
        predicted = [
            Observation(
                num_nodes=n,
                num_gpus=k,
                atomic_batch_size=m,
                micro_batch_s=float(alone[row]),
                last_time_s=float(last[row]),
                weight=1.0 if (n, k) in measured else _UNMEASURED_WEIGHT,
            )
            for row, (n, k, m) in enumerate(grid)
        ]
        return fit_throughput(predicted).parameters


class PolluxEquation(Equation):
    """The paper's equation, fitted by `fit_throughput`."""

    name = DEFAULT
    parameter_names = ("alpha_g", "beta_g", "alpha_n", "beta_n", "alpha_l", "beta_l", "gamma")

    def fit(
        self, observations: Sequence[Observation], *, previous: tuple[float, ...] | None = None
    ) -> EquationFit:
        """Return the result of `fit_throughput`."""
        result: FitResult = fit_throughput(
            observations, previous=None if previous is None else self.theta(previous)
        )
        theta = result.parameters
        values = None if theta is None else tuple(getattr(theta, name) for name in self.parameter_names)
        return EquationFit(values=values, error=result.error, reason=result.reason)

    def theta(self, values: Sequence[float]) -> ThroughputParameters:
        """Return the values as θ."""
        return ThroughputParameters(**dict(zip(self.parameter_names, values, strict=True)))

    def times_s(self, values: Sequence[float], at: Situations) -> tuple[FloatArray, FloatArray]:
        """Return T_grad, and T_iter of a step without accumulation: that is its last micro-batch."""
        theta = self.theta(values)
        return (
            gradient_time_s(theta, at.atomic_batch_size),
            iteration_time_s(theta, at.num_nodes, at.num_gpus, at.atomic_batch_size),
        )

    def projected(
        self, values: tuple[float, ...], observations: Sequence[Observation]
    ) -> ThroughputParameters | None:
        """Return the values themselves."""
        return self.theta(values)


class FormulaEquation(Equation):
    """An equation given by its formula: subclasses define `times_s` and `guess`. Parameters are positive.

    The fit is weighted least squares of the logarithms of both times, over the logarithms of the parameters.
    """

    @abstractmethod
    def guess(self, observations: Sequence[Observation]) -> Sequence[float]:
        """Return an initial guess of the parameters, each within its bounds."""

    def bounds(self) -> Sequence[tuple[float, float]]:
        """Return the least and the most of each parameter; seconds from 1e-8 to 1e6 unless overridden."""
        return [(SMALLEST_S, MAX_TIME_S)] * len(self.parameter_names)

    def fit(
        self, observations: Sequence[Observation], *, previous: tuple[float, ...] | None = None
    ) -> EquationFit:
        """Return the better of the descents from the guess and from `previous`."""
        usable = [seen for seen in observations if is_usable(seen)]
        if not usable:
            reason = (
                f"none of {len(observations)} observations is usable" if observations else "no observations"
            )
            return EquationFit(values=previous, error=None, reason=reason)
        guesses: list[Sequence[float]] = [] if previous is None else [previous]
        try:
            with np.errstate(all="ignore"):
                guesses.append(self.guess(usable))
                found = [self._descend(start, usable) for start in guesses]
        except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
            # A package's formula may raise on odd data: the previous values stay.
            return EquationFit(values=previous, error=None, reason=f"{self.name}: {error}")
        values, error_now = min(found, key=lambda one: one[1])
        if not math.isfinite(error_now):
            return EquationFit(values=previous, error=None, reason=f"{self.name}: no finite error was found")
        return EquationFit(values=values, error=error_now, reason=None)

    def _descend(
        self, start: Sequence[float], observations: Sequence[Observation]
    ) -> tuple[tuple[float, ...], float]:
        # Imported here: it takes longer than all else that a command such as `pollux status` does.
        from scipy.optimize import least_squares

        low, high = (np.log(np.array(side)) for side in zip(*self.bounds(), strict=True))
        at = Situations.of(observations)
        weight = np.array([seen.weight for seen in observations])
        root = np.sqrt(weight / weight.sum() / 2)
        measured = np.log([[seen.micro_batch_s, seen.last_time_s] for seen in observations]).T

        def residuals(x: FloatArray) -> FloatArray:
            predicted = self.times_s(tuple(np.exp(x).tolist()), at)
            errors = np.concatenate([root * (np.log(predicted[side]) - measured[side]) for side in (0, 1)])
            # A formula may leave its domain during the descent: that counts as a very large error.
            return np.asarray(np.nan_to_num(errors, nan=1e3, posinf=1e3, neginf=-1e3), dtype=np.float64)

        inside = np.clip(np.log(np.maximum(np.array(start, dtype=np.float64), 1e-300)), low, high)
        # On a bound the first step has no direction, so the descent begins a little inside.
        inside = np.clip(inside, low + 1e-3 * (high - low), high - 1e-3 * (high - low))
        found = least_squares(residuals, inside, bounds=(low, high), max_nfev=_MAX_EVALUATIONS)
        values = tuple(float(value) for value in np.exp(found.x))
        return values, float(math.sqrt(np.sum(residuals(found.x) ** 2)))


class Equations:
    """Equations by name: the paper's, registered ones, and those of entry points."""

    def __init__(self) -> None:
        self._known: dict[str, Equation] = {DEFAULT: PolluxEquation()}

    def register(self, equation: Equation) -> None:
        """Add an equation. Raises `ConfigError` if its name is taken."""
        if equation.name in self._known:
            raise ConfigError(f"there is a throughput equation called {equation.name!r} already")
        self._known[equation.name] = equation

    def get(self, name: str) -> Equation:
        """Return the equation of that name: a registered one, else that of an entry point.

        Raises `ConfigError`, which lists the known names, if there is none.
        """
        if name in self._known:
            return self._known[name]
        available = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
        if name not in available:
            known = ", ".join(sorted({*self._known, *available}))
            raise ConfigError(f"there is no throughput equation called {name!r}; there are: {known}")
        equation = available[name].load()()
        if not isinstance(equation, Equation):
            raise ConfigError(f"the entry point {name!r} of {ENTRY_POINTS} is not an Equation")
        self._known[name] = equation
        return equation
