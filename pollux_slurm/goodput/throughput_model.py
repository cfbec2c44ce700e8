"""The throughput model: the time of a step (Pollux, OSDI 2021, section 3.2).

K replicas on N nodes, atomic batch m, accumulation steps s; times in seconds. Every argument after θ may be
a number or a numpy array; arrays broadcast against each other, and the result has the broadcast shape.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import ThroughputParameters

FloatArray = npt.NDArray[np.float64]


def gradient_time_s(theta: ThroughputParameters, atomic_batch_size: npt.ArrayLike) -> FloatArray:
    """Return T_grad(m) = α_g + β_g·m, the time of one micro-batch without synchronisation (Pollux eq. 9)."""
    return theta.alpha_g + theta.beta_g * np.asarray(atomic_batch_size, dtype=np.float64)


def sync_time_s(theta: ThroughputParameters, num_nodes: npt.ArrayLike, num_gpus: npt.ArrayLike) -> FloatArray:
    """Return T_sync, the time to average gradients over the replicas (Pollux eq. 10).

    0 for one replica; α_l + β_l·max(K−2, 0) on one node; α_n + β_n·max(K−2, 0) over several.
    """
    nodes, gpus = np.asarray(num_nodes), np.asarray(num_gpus)
    further = np.maximum(gpus - 2, 0)
    local = theta.alpha_l + theta.beta_l * further
    remote = theta.alpha_n + theta.beta_n * further
    return np.where(gpus <= 1, 0.0, np.where(nodes <= 1, local, remote))


def overlapped_s(first_s: npt.ArrayLike, second_s: npt.ArrayLike, gamma: npt.ArrayLike) -> FloatArray:
    """Return (a^γ + b^γ)^(1/γ), the time of two that overlap (eq. 11).

    γ = 1 gives their sum, γ → ∞ the longer of the two.

    Evaluated as max·(1 + (min/max)^γ)^(1/γ), which neither overflows nor underflows. Both 0 gives 0.
    """
    a, b = np.asarray(first_s, dtype=np.float64), np.asarray(second_s, dtype=np.float64)
    longer, shorter = np.maximum(a, b), np.minimum(a, b)
    ratio = np.divide(shorter, longer, out=np.zeros(np.broadcast(a, b).shape), where=longer > 0)
    power = np.asarray(gamma, dtype=np.float64)
    return np.asarray(longer * (1.0 + ratio**power) ** (1.0 / power), dtype=np.float64)


def iteration_time_s(
    theta: ThroughputParameters,
    num_nodes: npt.ArrayLike,
    num_gpus: npt.ArrayLike,
    atomic_batch_size: npt.ArrayLike,
    accumulation_steps: npt.ArrayLike = 0,
) -> FloatArray:
    """Return T_iter = s·T_grad + (T_grad^γ + T_sync^γ)^(1/γ), the time of one optimizer step (eq. 8, 11).

    Only the last of the s + 1 micro-batches synchronises.
    """
    gradient = gradient_time_s(theta, atomic_batch_size)
    last_micro_batch = overlapped_s(gradient, sync_time_s(theta, num_nodes, num_gpus), theta.gamma)
    return np.asarray(accumulation_steps) * gradient + last_micro_batch
