"""The loss that the fit of θ to measured step times minimises, and its derivatives (Pollux, section 4.1).

Legend: R observations, of which s synchronise; for each N nodes, K replicas, m atomic batch, t_g the time of
a micro-batch without synchronisation, t_i that of a synchronising one, w weight, Σw = 1. G, S, L: the model's
T_grad, T_sync and (G^γ + S^γ)^(1/γ). x: n variables, those α and β that the observations determine, then γ if
any synchronises. P initial guesses.

The loss is  RMS_w(log G − log t_g) + RMS_w(log L − log t_i) + small regularization.  G and S are linear in
the α and β, (G, S) = D·x, and with e for either error

    ∂log L/∂log S = S^γ/(G^γ + S^γ) =: v,   ∂log L/∂log G = 1 − v,
    ∂log L/∂γ = v·log(S/G)/γ − log(1 + (S/G)^γ)/γ²,
    ∂RMS = Σ w·e·∂e / RMS,   ∂∂'RMS ≈ Σ w·∂e·∂'e / RMS − ∂RMS·∂'RMS / RMS.

The Gauss-Newton approximation ≈ leaves out second derivatives of e. It is positive semidefinite (Cauchy and
Schwarz), so each step of a descent is a small weighted least squares problem.

An error at the minimum above `_OUTLIER_ERROR` is a wrong measurement: no model of training is so far off.
Each error then has the weight w/(1 + (e/`_OUTLIER_SCALE`)²) instead of w (iteratively reweighted least
squares with Cauchy weights), separately for t_g and t_i. So a size that is truly slow keeps its t_i, even if
its t_g contradicts all others.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.goodput.checks import MAX_TIME_S
from pollux_slurm.goodput.observation import Observation
from pollux_slurm.model import ThroughputParameters

FloatArray = npt.NDArray[np.float64]

SMALLEST_S = 1e-8
MAX_GAMMA = 10.0
NETWORK_OVER_NODE = 1.1
_GAMMA_REGULARIZATION = 1e-3
_BETA_REGULARIZATION = 1e-2
# An outlier is at least 1.5 times the fitted time, or at most 2/3 of it: in simulations of the published
# traces, errors stay within 0.3. In the repeated fit, an error of a tenth has half its weight.
_OUTLIER_ERROR, _OUTLIER_SCALE = math.log(1.5), 0.1
# The root is smooth below an error of a tenth of a percent: exact data would otherwise make a kink at the
# minimum, where the descent stalls.
_SMOOTHING = 1e-3
_NUMBERS = operator.attrgetter(
    "num_nodes", "num_gpus", "atomic_batch_size", "micro_batch_s", "last_time_s", "weight"
)
_POWERS = np.arange(3.0)
_FIRST_GAMMAS = np.array([[1.0], [1.2], [1.5], [2.0], [3.0], [4.5], [7.0]])
# For each γ: 0.01^γ and 1/γ.
_LEAST_PARTS, _FIRST_INVERSES = 0.01**_FIRST_GAMMAS, 1.0 / _FIRST_GAMMAS


@dataclass(slots=True, kw_only=True, eq=False)
class Point:
    """The loss at x, and the terms of its gradient.

    `error` e and `weighted` w·e `(2, R)`, first those of G, then those of L; `times_s` D·x `(R + s,)`;
    `distance` log S/G and `excess` log L/G `(s,)`; the RMS of G and of L.
    """

    x: list[float]
    value: float
    error: FloatArray
    weighted: FloatArray
    times_s: FloatArray
    distance: FloatArray
    excess: FloatArray
    root_g: float
    root_l: float


class StepTimeLoss:
    """The loss over the variables of θ that the observations (at least one, all usable) determine.

    Rows are ordered: several nodes, one node, one replica. With a single m, T_grad is one variable. Where α_l
    is a variable, α_n − 1.1·α_l is one instead of α_n, so that a lower bound keeps α_n ≥ 1.1·α_l.
    """

    def __init__(self, observations: Sequence[Observation]) -> None:
        rows = [_NUMBERS(one) for one in observations]
        remote, alone = [row for row in rows if row[0] > 1], [row for row in rows if row[1] == 1]
        local = [row for row in rows if row[0] == 1 and row[1] > 1]
        self._num, self._remote, self._synced = len(rows), len(remote), len(remote) + len(local)
        self._one_batch = len({row[2] for row in rows}) == 1
        numbers = itertools.chain.from_iterable(zip(*remote, *local, *alone, strict=True))
        # `np.array` from tuples takes ten times as long.
        table = np.fromiter(numbers, dtype=np.float64).reshape(6, -1)
        _, gpus, self._m, self._micro_batch_s, self._last_s, weight = table
        self._beyond_two = np.maximum(gpus[: self._synced] - 2.0, 0.0)
        self._w = weight / weight.sum()
        # The weight of each error; `(2, R)` once outliers have less.
        self._error_weight = self._w
        self._measured = np.log(table[3:5])
        self._make_design(
            three_local=any(row[1] > 2 for row in local), three_remote=any(row[1] > 2 for row in remote)
        )
        synced = self._synced > 0
        self.low = [SMALLEST_S] * self._num_times + [1.0] * synced
        self.high = [MAX_TIME_S] * self._num_times + [MAX_GAMMA] * synced

    def _make_design(self, *, three_local: bool, three_remote: bool) -> None:
        """Make D, `(R + s, n − 1)`, and number the variables; −1 for one that no observation determines."""
        rows, synced, remote, beyond_two = self._num, self._synced, self._remote, self._beyond_two
        size = 1 if self._one_batch else 2
        self._alpha_l = self._beta_l = self._alpha_n = self._beta_n = -1
        if synced > remote:
            self._alpha_l, size = size, size + 1
            if three_local:
                self._beta_l, size = size, size + 1
        if remote:
            self._alpha_n, size = size, size + 1
            if three_remote:
                self._beta_n, size = size, size + 1
        self._num_times = size
        self._design = design = np.zeros((rows + synced, size))
        design[:rows, 0] = 1.0
        if not self._one_batch:
            design[:rows, 1] = self._m
        if self._alpha_l >= 0:
            design[rows + remote :, self._alpha_l] = 1.0
            design[rows : rows + remote, self._alpha_l] = NETWORK_OVER_NODE
        if self._beta_l >= 0:
            design[rows + remote :, self._beta_l] = beyond_two[remote:]
        if self._alpha_n >= 0:
            design[rows : rows + remote, self._alpha_n] = 1.0
        if self._beta_n >= 0:
            design[rows : rows + remote, self._beta_n] = beyond_two[:remote]
        # For every β of T_sync that is a variable: its number, that of its α, and that of α_l in α_n.
        self._betas = [
            one
            for one in ((self._beta_l, self._alpha_l, -1), (self._beta_n, self._alpha_n, self._alpha_l))
            if one[0] >= 0
        ]

    # ------------------------------------------------------------------------------------------ guesses

    def guesses(self) -> FloatArray:
        """Return P initial guesses `(P, n)`, one for each γ: relative least squares of G, then of S."""
        synced, remote = self._synced, self._remote
        gamma = _FIRST_GAMMAS if synced else np.ones((1, 1))
        x = np.zeros((len(gamma), len(self.low)))
        intercept, slope = _line(self._m, self._micro_batch_s[None, :], self._w)
        if self._one_batch:
            x[:, 0] = intercept[0] + slope[0] * self._m[0]
        else:
            x[:, 0], x[:, 1] = intercept[0], slope[0]
        if synced:
            last = self._last_s[:synced]
            # S from L = (G^γ + S^γ)^(1/γ); a hundredth of L where noise makes L ≤ G.
            part = (np.minimum(self._micro_batch_s[:synced], last) / last) ** gamma
            sync = last * np.maximum(1.0 - part, _LEAST_PARTS) ** _FIRST_INVERSES
            for rows, alpha, beta in (
                (slice(remote, synced), self._alpha_l, self._beta_l),
                (slice(0, remote), self._alpha_n, self._beta_n),
            ):
                if alpha >= 0:
                    x[:, alpha], slope = _line(self._beyond_two[rows], sync[:, rows], self._w[rows])
                    if beta >= 0:
                        x[:, beta] = slope
            if self._alpha_l >= 0 and self._alpha_n >= 0:
                x[:, self._alpha_n] -= NETWORK_OVER_NODE * x[:, self._alpha_l]
            x[:, -1] = gamma[:, 0]
        low, high = np.array((self.low, self.high))
        within: FloatArray = np.minimum(np.maximum(x, low), high)
        return within

    def guess_from(self, theta: ThroughputParameters) -> FloatArray:
        """Return the guess `(1, n)` from an earlier θ."""
        x = [0.0] * len(self.low)
        if self._one_batch:
            x[0] = theta.alpha_g + theta.beta_g * float(self._m[0])
        else:
            x[:2] = theta.alpha_g, theta.beta_g
        for position, value in (
            (self._alpha_l, theta.alpha_l),
            (self._beta_l, theta.beta_l),
            (self._beta_n, theta.beta_n),
            (self._alpha_n, theta.alpha_n - NETWORK_OVER_NODE * theta.alpha_l * (self._alpha_l >= 0)),
        ):
            if position >= 0:
                x[position] = value
        if self._synced:
            x[-1] = theta.gamma
        # NaN becomes the lower bound.
        within = [
            (high if value > high else value) if value > low else low
            for value, low, high in zip(x, self.low, self.high, strict=True)
        ]
        return np.array([within])

    # ----------------------------------------------------------------------------------- loss and derivatives

    def values(self, x: FloatArray) -> FloatArray:
        """Return the loss `(P,)` at each row of x `(P, n)`."""
        rows, synced = self._num, self._synced
        log_times = np.log(x[:, : self._num_times] @ self._design.T)
        log_g = log_times[:, :rows]
        error = log_g[:, None] - self._measured
        value = np.zeros(len(x))
        if synced:
            gamma = x[:, -1:]
            distance = log_times[:, rows:] - log_g[:, :synced]
            error[:, 1, :synced] += np.logaddexp(gamma * distance, 0.0) / gamma
            value = _GAMMA_REGULARIZATION * (x[:, -1] - 1.0) ** 2
            for beta, alpha, within in self._betas:
                whole = x[:, alpha] + (NETWORK_OVER_NODE * x[:, within] if within >= 0 else 0.0)
                square = (x[:, beta] / whole) ** 2
                value += _BETA_REGULARIZATION * square / (1.0 + square)
        roots = np.sqrt((error * error * self._error_weight).sum(axis=2) + _SMOOTHING**2)
        value += roots[:, 0]
        value += roots[:, 1]
        return value

    def at(self, x: list[float]) -> Point:
        """Return the loss at x."""
        rows, synced = self._num, self._synced
        times_s = self._design.dot(np.array(x[: self._num_times]))
        log_times = np.log(times_s)
        log_g = log_times[:rows]
        error = log_g - self._measured
        distance = excess = log_g[:0]
        regularization = 0.0
        if synced:
            gamma = x[-1]
            distance = log_times[rows:] - log_g[:synced]
            # log(1 + (S/G)^γ)/γ without overflow and cancellation.
            excess = np.logaddexp(gamma * distance, 0.0) / gamma
            error[1, :synced] += excess
            regularization = _GAMMA_REGULARIZATION * (gamma - 1.0) ** 2
            for beta, alpha, within in self._betas:
                # q/(1 + q) with q = (β/α)²: quadratic near 0, bounded where α is far too small.
                square = (x[beta] / self._whole(x, alpha, within)) ** 2
                regularization += _BETA_REGULARIZATION * square / (1.0 + square)
        weighted = self._error_weight * error
        root_g = math.sqrt(weighted[0].dot(error[0]) + _SMOOTHING**2)
        root_l = math.sqrt(weighted[1].dot(error[1]) + _SMOOTHING**2)
        return Point(
            x=x,
            value=root_g + root_l + regularization,
            error=error,
            weighted=weighted,
            times_s=times_s,
            distance=distance,
            excess=excess,
            root_g=root_g,
            root_l=root_l,
        )

    def derivatives(self, point: Point) -> tuple[list[float], list[list[float]], list[float]]:
        """Return gradient `(n,)`, Hessian `(n, n)`, and the latter's diagonal without − ∂RMS·∂'RMS / RMS."""
        rows, synced, size = self._num, self._synced, self._num_times
        by_times = self._design / point.times_s[:, None]
        grad = by_times[:rows]
        by_x = np.zeros((2, rows, len(self.low)))
        by_x[:, :, :size] = grad
        if synced:
            gamma, distance = point.x[-1], point.distance
            share = 0.5 + 0.5 * np.tanh(0.5 * gamma * distance)
            last = by_x[1, :synced]
            last[:, :size] += share[:, None] * (by_times[rows:] - grad[:synced])
            last[:, size] = (share * distance - point.excess) / gamma
        roots = np.array(((point.root_g,), (point.root_l,)))
        gradients = (point.weighted[:, None] @ by_x)[:, 0] / roots
        flat = by_x.reshape(2 * rows, -1)
        whole = (flat * (self._error_weight / roots).reshape(-1, 1)).T @ flat
        scale = whole.diagonal().tolist()
        of_g, of_l = gradients[:, :, None] * (gradients / roots)[:, None]
        whole -= of_g + of_l
        gradient, hessian = (gradients[0] + gradients[1]).tolist(), whole.tolist()
        if synced:
            self._add_regularization(point.x, gradient, hessian, scale)
        return gradient, hessian, scale

    def _add_regularization(
        self, x: list[float], gradient: list[float], hessian: list[list[float]], scale: list[float]
    ) -> None:
        gradient[-1] += 2.0 * _GAMMA_REGULARIZATION * (x[-1] - 1.0)
        hessian[-1][-1] += 2.0 * _GAMMA_REGULARIZATION
        scale[-1] += 2.0 * _GAMMA_REGULARIZATION
        for beta, alpha, within in self._betas:
            # With r = β/α, the term is the square of r/√(1 + r²); its second derivative is at most `bend`.
            whole = self._whole(x, alpha, within)
            r = x[beta] / whole
            push = 2.0 * _BETA_REGULARIZATION / (1.0 + r * r) ** 2
            bend = push / (1.0 + r * r)
            by_x = [(beta, 1.0 / whole), (alpha, -r / whole)]
            if within >= 0:
                by_x.append((within, -NETWORK_OVER_NODE * r / whole))
            for i, by_i in by_x:
                gradient[i] += push * r * by_i
                scale[i] += bend * by_i * by_i
                for j, by_j in by_x:
                    hessian[i][j] += bend * by_i * by_j

    def _whole(self, x: Sequence[float], alpha: int, within: int) -> float:
        """Return α_l, or α_n from its variable and α_l."""
        return x[alpha] + NETWORK_OVER_NODE * x[within] if within >= 0 else x[alpha]

    # ---------------------------------------------------------------------------------------- answers

    def parameters(self, x: Sequence[float]) -> ThroughputParameters:
        """Return θ, with optimistic values for parameters that the observations do not determine."""
        if self._one_batch:
            alpha_g, beta_g = x[0] / 2, x[0] / (2 * float(self._m[0]))
        else:
            alpha_g, beta_g = x[0], x[1]
        alpha_l, beta_l, alpha_n, beta_n = (
            x[position] if position >= 0 else SMALLEST_S
            for position in (self._alpha_l, self._beta_l, self._alpha_n, self._beta_n)
        )
        if self._alpha_n < 0:
            alpha_n = NETWORK_OVER_NODE * alpha_l
        elif self._alpha_l >= 0:
            alpha_n += NETWORK_OVER_NODE * alpha_l
        return ThroughputParameters(
            alpha_g=min(alpha_g, MAX_TIME_S),
            beta_g=min(beta_g, MAX_TIME_S),
            alpha_l=alpha_l,
            beta_l=beta_l,
            alpha_n=min(alpha_n, MAX_TIME_S),
            beta_n=beta_n if self._beta_n >= 0 else beta_l,
            gamma=x[-1] if self._synced else 1.0,
        )

    def has_outliers(self, point: Point) -> bool:
        """Return whether a measurement is so far from the model that it must be wrong."""
        return bool(np.abs(point.error).max() > _OUTLIER_ERROR)

    def downweight_outliers(self, point: Point) -> None:
        """Give each error less weight the larger it is at `point`."""
        weight = self._w / (1.0 + (point.error / _OUTLIER_SCALE) ** 2)
        self._error_weight = weight / weight.sum(axis=1, keepdims=True)

    def error(self, point: Point) -> float:
        """Return the weighted root mean squared log error over both times."""
        return math.sqrt(float(point.weighted.ravel() @ point.error.ravel()) / 2)


def _line(x: FloatArray, y: FloatArray, weight: FloatArray) -> tuple[list[float], list[float]]:
    """Return intercepts and slopes, both ≥ 0, of P lines through (x, y) by relative least squares.

    x and `weight` are `(r,)`, y is `(P, r)`. The normal equations have the terms Σ w/y², Σ w·x/y² and so on.
    """
    origin = float(x[0])
    powers = (x - origin)[:, None] ** _POWERS
    by_y = weight / y
    left, right = ((by_y / y) @ powers).tolist(), (by_y @ powers[:, :2]).tolist()
    intercepts, slopes = [], []
    for (total, first, second), (of_y, of_xy) in zip(left, right, strict=True):
        spread = total * second - first * first
        # Where all x are equal, rounding may leave a spread of this size.
        determined = spread > 1e-12 * total * second
        slope = max((total * of_xy - first * of_y) / spread, 0.0) if determined else 0.0
        intercept = (of_y - slope * first) / total - slope * origin
        if intercept < 0.0:
            from_zero = second + origin * (2.0 * first + origin * total)
            intercept, slope = 0.0, (of_xy + origin * of_y) / from_zero
        intercepts.append(intercept)
        slopes.append(slope)
    return intercepts, slopes
