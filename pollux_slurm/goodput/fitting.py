"""Fit θ to measured step times (Pollux, OSDI 2021, section 4.1), without ever raising on odd data.

Legend: R observations; for each N nodes, K replicas, m atomic batch, t_g the time of a pass without
synchronisation, t_i that of a synchronising one, w weight. G, S, L: the model's T_grad, T_sync and
(G^γ + S^γ)^(1/γ).

Minimised is  RMS_w(log G − log t_g) + RMS_w(log L − log t_i) + small pulls  over the logarithms of the
times and over γ, by a bounded descent with the gradient below. In logarithms every derivative is an
elasticity between 0 and 1, whatever the unit or the application:

    ∂log L/∂log S = S^γ/(G^γ + S^γ) =: v,   ∂log L/∂log G = 1 − v,
    ∂log L/∂γ = v·log(S/G)/γ − log(1 + (S/G)^γ)/γ².

Optimism before evidence, so that the scheduler tries what nobody has measured:

- one m seen: T_grad is split evenly between α_g and β_g·m;
- no replicas sharing a node seen: α_l ≈ 0; none on several nodes: α_n = 1.1·α_l, β_n = β_l;
- no three replicas seen (on one node, on several): that β is 0, or β_l for β_n where β_l is known;
- always α_n ≥ 1.1·α_l: the network is not faster than the node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.goodput.checks import MAX_BATCH_SIZE, MAX_GPUS, MAX_TIME_S, MIN_PASS_TIME_S
from pollux_slurm.model import ThroughputParameters

FloatArray = npt.NDArray[np.float64]

SMALLEST_S = 1e-8
MAX_GAMMA = 10.0
NETWORK_OVER_NODE = 1.1
_GAMMA_PULL = 1e-3
_SLOPE_PULL = 1e-2
# Below an error of a tenth of a percent the root is rounded off: exact data would otherwise put a kink at
# the minimum, where the descent stalls.
_ROUNDING = 1e-3
_FIRST_GAMMAS = (1.2, 2.0, 3.0, 6.0)
_MAX_EVALUATIONS = 200

# Positions in the vector of all seven parameters.
_AG, _BG, _AL, _BL, _AN, _BN, _GAMMA = range(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Mean step times of one job in one situation.

    `grad_time_s` is a pass without synchronisation over `atomic_batch_size` examples; `iter_time_s` is the
    last pass of a step, synchronisation included (the whole step where nothing is accumulated). `weight`
    grows with how much the measurement counts (how often it was taken, how recently).
    """

    num_nodes: int
    num_gpus: int
    atomic_batch_size: int
    grad_time_s: float
    iter_time_s: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """θ and how well it fits.

    `error` is the weighted root mean squared log error over both times (0.05 is about 5 %). `reason` says
    why nothing new was fitted; `parameters` are then the previous ones, or None.
    """

    parameters: ThroughputParameters | None
    error: float | None
    reason: str | None
    num_used: int = 0


def fit_throughput(
    observations: Sequence[Observation], *, previous: ThroughputParameters | None = None
) -> FitResult:
    """Return θ fitted to `observations`, started from `previous` too where it is given.

    Observations with a number that cannot be (NaN, ≤ 0, more nodes than GPUs, ...) are left out.
    """
    usable = [seen for seen in observations if is_usable(seen)]
    if not usable:
        reason = f"none of {len(observations)} observations is usable" if observations else "no observations"
        return FitResult(parameters=previous, error=None, reason=reason)
    problem = _Problem(usable)
    # One descent, from the most promising of a few guesses: from there it reached the lowest of all minima
    # found on every published trace. The previous fit is a guess only if that falls short of it, or an old
    # local minimum would be kept for ever.
    guesses = [problem.start(gamma) for gamma in (_FIRST_GAMMAS if problem.sees_sync else (1.0,))]
    best_x, best_loss = problem.descend(min(guesses, key=lambda guess: problem.loss(guess)[0]))
    if previous is not None:
        guess = problem.start_at(previous)
        if problem.loss(guess)[0] < best_loss:
            best_x, best_loss = problem.descend(guess)
    if not math.isfinite(best_loss):
        return FitResult(parameters=previous, error=None, reason="the fit found no finite error")
    return FitResult(
        parameters=problem.parameters(best_x),
        error=problem.error(best_x),
        reason=None,
        num_used=len(usable),
    )


def is_usable(seen: Observation) -> bool:
    """Tell whether all numbers of an observation are ones that a job can have."""
    counts = (seen.num_nodes, seen.num_gpus, seen.atomic_batch_size)
    times = (seen.grad_time_s, seen.iter_time_s, seen.weight)
    if not all(isinstance(value, int | np.integer) for value in counts):
        return False
    if not all(isinstance(value, int | float | np.floating) for value in times):
        return False
    return (
        1 <= seen.num_nodes <= seen.num_gpus <= MAX_GPUS
        and 1 <= seen.atomic_batch_size <= MAX_BATCH_SIZE
        and MIN_PASS_TIME_S <= seen.grad_time_s <= MAX_TIME_S
        and MIN_PASS_TIME_S <= seen.iter_time_s <= MAX_TIME_S
        and 1e-12 <= seen.weight <= 1e12
    )


class _Problem:
    """The observations as arrays, which of the seven parameters they determine, and the loss over those.

    The loss is over `x`: the logarithm of each free time and γ itself. α_n, where α_l is free as well, enters
    as α_n − 1.1·α_l, so that its lower bound is a bound on x.
    """

    def __init__(self, observations: Sequence[Observation]) -> None:
        self._m = np.array([seen.atomic_batch_size for seen in observations], dtype=np.float64)
        nodes = np.array([seen.num_nodes for seen in observations])
        gpus = np.array([seen.num_gpus for seen in observations])
        self._log_grad = np.log([seen.grad_time_s for seen in observations])
        self._log_iter = np.log([seen.iter_time_s for seen in observations])
        weight = np.array([seen.weight for seen in observations])
        self._w = weight / weight.sum()
        self._further = np.maximum(gpus - 2, 0).astype(np.float64)
        self._synced = gpus > 1
        self._remote = self._synced & (nodes > 1)
        self._local = self._synced & (nodes == 1)

        local, remote = bool(self._local.any()), bool(self._remote.any())
        self._one_batch = bool(np.all(self._m == self._m[0]))
        self.sees_sync = local or remote
        self._free = np.array(
            [
                True,
                not self._one_batch,
                local,
                local and bool((gpus[self._local] > 2).any()),
                remote,
                remote and bool((gpus[self._remote] > 2).any()),
                self.sees_sync,
            ]
        )
        low, high = math.log(SMALLEST_S), math.log(MAX_TIME_S)
        self.bounds = [
            (1.0, MAX_GAMMA) if index == _GAMMA else (low, high) for index in np.flatnonzero(self._free)
        ]

    def start(self, gamma: float) -> FloatArray:
        """Return a first guess at the given γ: relative least squares, pass times first, then sync times."""
        grad, last = np.exp(self._log_grad), np.exp(self._log_iter)
        p = np.full(7, SMALLEST_S)
        p[_GAMMA] = gamma
        p[_AG], p[_BG] = _line(self._m, grad, self._w)
        # S from L = (G^γ + S^γ)^(1/γ); a hundredth of the pass where noise made L ≤ G.
        sync = np.maximum(last**gamma - np.minimum(grad, last) ** gamma, (0.01 * last) ** gamma) ** (
            1 / gamma
        )
        for rows, alpha, beta in ((self._local, _AL, _BL), (self._remote, _AN, _BN)):
            if rows.any():
                p[alpha], p[beta] = _line(self._further[rows], sync[rows], self._w[rows])
        return self._pack(p)

    def start_at(self, theta: ThroughputParameters) -> FloatArray:
        """Return the guess that an earlier fit is."""
        times = (theta.alpha_g, theta.beta_g, theta.alpha_l, theta.beta_l, theta.alpha_n, theta.beta_n)
        return self._pack(np.array([*times, theta.gamma]))

    def _pack(self, p: FloatArray) -> FloatArray:
        p = np.nan_to_num(p, nan=SMALLEST_S, posinf=MAX_TIME_S, neginf=SMALLEST_S)
        if self._free[_AN] and self._free[_AL]:
            p[_AN] = p[_AN] - NETWORK_OVER_NODE * p[_AL]
        if self._one_batch:
            p[_AG] = p[_AG] + p[_BG] * self._m[0]
        times = np.log(np.clip(p[:_GAMMA], SMALLEST_S, MAX_TIME_S))
        free = np.append(times, np.clip(p[_GAMMA], 1.0, MAX_GAMMA))[self._free]
        return np.asarray(free, dtype=np.float64)

    def _unpack(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return all seven parameters, and exp(x) by position (with the excess of α_n in its place)."""
        raw = np.full(7, SMALLEST_S)
        raw[_GAMMA] = 1.0
        raw[self._free] = x
        times = self._free.copy()
        times[_GAMMA] = False
        raw[times] = np.exp(raw[times])
        p = raw.copy()
        if self._one_batch:
            p[_AG], p[_BG] = raw[_AG] / 2, raw[_AG] / (2 * self._m[0])
        if self._free[_AL] and self._free[_AN]:
            p[_AN] = raw[_AN] + NETWORK_OVER_NODE * raw[_AL]
        return p, raw

    def descend(self, start: FloatArray) -> tuple[FloatArray, float]:
        """Return the minimum reached from `start`, and its loss.

        Truncated Newton finds the same minima as L-BFGS-B in as many steps, and calls no BLAS: on the 20 × 20
        matrices of scipy's L-BFGS-B, OpenBLAS wakes a thread per core that spins, and beside training, which
        keeps the cores busy, 7 ms of work became 50 to 150 ms of CPU time (scipy 1.17).
        """
        # Imported here: it takes longer than all else that a command such as `pollux status` does.
        from scipy.optimize import minimize

        found = minimize(
            self.loss,
            start,
            jac=True,
            method="TNC",
            bounds=self.bounds,
            options={"maxfun": _MAX_EVALUATIONS},
        )
        return np.asarray(found.x, dtype=np.float64), float(found.fun)

    def parameters(self, x: FloatArray) -> ThroughputParameters:
        """Return θ, with what the observations leave open filled in optimistically and within bounds."""
        p, _ = self._unpack(x)
        if not self._free[_AN]:
            p[_AN] = NETWORK_OVER_NODE * p[_AL]
        if not self._free[_BN]:
            p[_BN] = p[_BL]
        p[:_GAMMA] = np.clip(p[:_GAMMA], 0.0, MAX_TIME_S)
        return ThroughputParameters(
            alpha_g=float(p[_AG]),
            beta_g=float(p[_BG]),
            alpha_l=float(p[_AL]),
            beta_l=float(p[_BL]),
            alpha_n=float(p[_AN]),
            beta_n=float(p[_BN]),
            gamma=float(p[_GAMMA]),
        )

    def error(self, x: FloatArray) -> float:
        """Return the root mean squared log error over both times."""
        p, _ = self._unpack(x)
        log_g, log_l, _, _, _ = self._model(p)
        squares = (log_g - self._log_grad) ** 2 + (log_l - self._log_iter) ** 2
        return float(np.sqrt(np.sum(self._w * squares) / 2))

    def _model(self, p: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return log G, log L, S, v and ∂log L/∂γ for each observation."""
        log_g = np.log(p[_AG] + p[_BG] * self._m)
        sync = np.where(self._remote, p[_AN] + p[_BN] * self._further, p[_AL] + p[_BL] * self._further)
        distance = np.where(self._synced, np.log(sync) - log_g, 0.0)
        share = np.where(self._synced, 0.5 + 0.5 * np.tanh(p[_GAMMA] * distance / 2), 0.0)
        excess = np.where(self._synced, np.logaddexp(0.0, p[_GAMMA] * distance), 0.0)
        slope = (share * distance - excess / p[_GAMMA]) / p[_GAMMA]
        return log_g, log_g + excess / p[_GAMMA], sync, share, slope

    def loss(self, x: FloatArray) -> tuple[float, FloatArray]:
        """Return the loss and its gradient over `x`."""
        p, raw = self._unpack(x)
        log_g, log_l, sync, share, slope = self._model(p)
        error_g, error_l = log_g - self._log_grad, log_l - self._log_iter
        root_g = math.sqrt(float(self._w @ error_g**2) + _ROUNDING**2)
        root_l = math.sqrt(float(self._w @ error_l**2) + _ROUNDING**2)
        value = root_g + root_l + _GAMMA_PULL * (p[_GAMMA] - 1.0) ** 2

        push_l = self._w * error_l / root_l
        by_g = (self._w * error_g / root_g + push_l * (1.0 - share)) / np.exp(log_g)  # ∂loss/∂G
        by_s = push_l * share / sync  # ∂loss/∂S
        full = np.zeros(7)
        full[_AG], full[_BG] = by_g.sum(), by_g @ self._m
        for rows, alpha, beta in ((self._local, _AL, _BL), (self._remote, _AN, _BN)):
            full[alpha] = by_s[rows].sum()
            full[beta] = by_s[rows] @ self._further[rows]
            if self._free[beta]:
                # The pull q/(1 + q) with q = (β/α)²: quadratic near 0, and harmless where α is far too small.
                q = (p[beta] / p[alpha]) ** 2
                value += _SLOPE_PULL * q / (1.0 + q)
                full[beta] += _SLOPE_PULL * 2.0 * q / (1.0 + q) ** 2 / p[beta]
                full[alpha] -= _SLOPE_PULL * 2.0 * q / (1.0 + q) ** 2 / p[alpha]
        full[_GAMMA] = push_l @ slope + 2.0 * _GAMMA_PULL * (p[_GAMMA] - 1.0)
        if self._one_batch:
            full[_AG] = full[_AG] / 2 + full[_BG] / (2 * self._m[0])
        if self._free[_AL] and self._free[_AN]:
            full[_AL] += NETWORK_OVER_NODE * full[_AN]
        full[:_GAMMA] *= raw[:_GAMMA]  # ∂/∂log t = t·∂/∂t
        return float(value), full[self._free]


def _line(x: FloatArray, y: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Return intercept and slope ≥ 0 of the line through (x, y) with the least squared relative error."""
    w = weight / y**2
    total = w.sum()
    mean_x, mean_y = (w @ x) / total, (w @ y) / total
    spread = w @ (x - mean_x) ** 2
    slope = max((w @ ((x - mean_x) * (y - mean_y))) / spread, 0.0) if spread > 0 else 0.0
    intercept = mean_y - slope * mean_x
    if intercept < 0:
        intercept, slope = 0.0, (w @ (x * y)) / (w @ x**2)
    return float(intercept), float(slope)
