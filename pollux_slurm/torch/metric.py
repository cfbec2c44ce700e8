"""In which metric gradients are measured: plainly, or as an Adam-like optimizer sees them.

An optimizer that divides each coordinate by a running root mean square moves along p ⊙ g with
p = 1/(√v̂ + ε), so what tells how much a larger batch is worth is the noise of p ⊙ g, not of g. v̂ comes from
steps before the present one, so it does not depend on the gradient that it is applied to.

Norms are kept apart by the optimizer's parameter groups. All work is on flat buckets or with multi-tensor
kernels, and every result stays on the gradients' device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from pollux_slurm.torch.scaling_rules import normalises

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

# Where optimizers keep the running mean of squared gradients, the most specific first: AMSGrad; Adam, AdamW,
# NAdam, RAdam, LAMB; RMSprop, Adadelta; Adagrad.
_SECOND_MOMENTS = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")
# Steps after which v̂ is more than an echo of a few gradients.
_SETTLED_AT = 20
# A coordinate that hardly ever had a gradient (a rare word) has v ≈ 0; divided by that, the next gradient
# would outweigh all others. The optimizer itself uses v after the step, which bounds it; here the root mean
# square is taken to be at least this part of its parameter's own.
_FLOOR = 1e-2


class GradientMetric:
    """Squared norms of gradients, by parameter group of `optimizer`.

    `begin_step` must be called before the norms of a step are taken; within a step the metric is fixed.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._groups: dict[int, int] = {}
        self._num_parameters = -1
        self._num_steps: int | None = None
        # By group: what √v is divided by, and ε; empty where norms are plain.
        self._corrections: list[tuple[float, float]] = []

    @property
    def num_groups(self) -> int:
        """How many numbers a norm has."""
        return len(self._optimizer.param_groups)

    @property
    def preconditions(self) -> bool:
        """True where norms are those of p ⊙ g."""
        return bool(self._corrections)

    def stepped(self) -> None:
        """Tell that the optimizer has stepped."""
        if self._num_steps is not None:
            self._num_steps += 1

    def restored(self) -> None:
        """Tell that the optimizer's state was loaded."""
        self._num_steps = None

    def begin_step(self) -> bool:
        """Look at the optimizer; False while its preconditioner is not settled, and norms mean nothing."""
        groups = self._optimizer.param_groups
        count = sum(len(group["params"]) for group in groups)
        if count != self._num_parameters:
            self._num_parameters = count
            self._groups = {id(p): index for index, group in enumerate(groups) for p in group["params"]}
        state = next(iter(self._optimizer.state.values()), None)
        if not state:
            # Before its first step only the name tells.
            self._corrections = []
            return not normalises(type(self._optimizer).__name__)
        if not any(key in state for key in _SECOND_MOMENTS):
            self._corrections = []
            return True
        if self._num_steps is None:
            # Read once, and counted from then on: on a GPU reading waits for the device.
            step = state.get("step", _SETTLED_AT)
            self._num_steps = int(step.item()) if isinstance(step, torch.Tensor) else int(step)
        self._corrections = [_correction(group, self._num_steps) for group in groups]
        return self._num_steps >= _SETTLED_AT

    def squared_norms(self, flat: torch.Tensor, bucket: GradBucket) -> torch.Tensor:
        """Return |x|² by parameter group, of shape `(num_groups,)`, for a tensor laid out as `bucket` is.

        Parameters that the optimizer does not have count for nothing.
        """
        parameters = bucket.parameters()
        places = {self._groups.get(id(parameter), -1) for parameter in parameters}
        place = min(places)
        if not self._corrections and len(places) == 1 and place >= 0:
            wide = _wide(flat)
            return _at(torch.dot(wide, wide), place, self.num_groups)
        return self.squared_norms_of(parameters, views(flat, bucket))

    def squared_norms_of(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Return the same for gradients given one by one."""
        by_group: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for parameter, gradient in zip(parameters, gradients, strict=True):
            place = self._groups.get(id(parameter), -1)
            if place >= 0:
                by_group.setdefault(place, []).append((parameter, _wide(gradient)))
        kind = torch.float64 if gradients and gradients[0].dtype == torch.float64 else torch.float32
        device = gradients[0].device if gradients else None
        result = torch.zeros(self.num_groups, dtype=kind, device=device)
        for group, pairs in sorted(by_group.items()):
            measured = self._precondition(pairs, group) if self._corrections else [x for _, x in pairs]
            if measured:
                norms = torch.stack(torch._foreach_norm(measured))
                result[group] = torch.dot(norms, norms)
        return result

    def _precondition(
        self, given: Sequence[tuple[torch.Tensor, torch.Tensor]], group: int
    ) -> list[torch.Tensor]:
        """Return p ⊙ g of each parameter that has a second moment; the others never had a gradient."""
        pairs = [
            (gradient, moment)
            for parameter, gradient in given
            if (moment := _second_moment(self._optimizer.state.get(parameter), gradient)) is not None
        ]
        if not pairs:
            return []
        correction, epsilon = self._corrections[group]
        with torch.no_grad():
            roots = torch._foreach_sqrt([moment for _, moment in pairs])
            # The root mean square over a parameter is the norm of its roots over √D.
            floors = torch._foreach_norm(roots)
            scales = [_FLOOR / max(root.numel(), 1) ** 0.5 for root in roots]
            floors = torch._foreach_mul(floors, scales)
            torch._foreach_add_(roots, list(floors))
            if correction != 1.0:
                torch._foreach_div_(roots, correction)
            if epsilon:
                torch._foreach_add_(roots, epsilon)
            quotients = torch._foreach_div([gradient for gradient, _ in pairs], list(roots))
        return list(quotients)


def _correction(group: dict[str, Any], step: int) -> tuple[float, float]:
    """Return by what to divide √v, so that v̂ is a mean of squares from the first step on, and ε.

    Adam does so itself; for the others it only changes p as a whole, and that not in the ratio φ. Without it
    p would shrink for as long as v grows. Adagrad's v is a sum: the mean is that over the steps.
    """
    betas = group.get("betas")
    decay = betas[1] if isinstance(betas, tuple | list) else group.get("alpha", group.get("rho"))
    epsilon = group.get("eps")
    step = max(step, 1)
    share = float(step) if decay is None else 1.0 - float(decay) ** step
    return share**0.5 if share > 0 else 1.0, float(epsilon) if isinstance(epsilon, int | float) else 0.0


def _second_moment(state: Any, like: torch.Tensor) -> torch.Tensor | None:
    for key in _SECOND_MOMENTS:
        moment = (state or {}).get(key)
        if isinstance(moment, torch.Tensor) and moment.shape == like.shape and moment.device == like.device:
            return _wide(moment)
    return None


def views(flat: torch.Tensor, bucket: GradBucket) -> list[torch.Tensor]:
    """Return the parts of `flat` that belong to the bucket's parameters, shaped like them."""
    start = bucket.buffer().storage_offset()
    return [
        flat.as_strided(
            gradient.size(),
            gradient.stride(),
            flat.storage_offset() + gradient.storage_offset() - start,
        )
        for gradient in bucket.gradients()
    ]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return it in single precision at least: squares of half-precision numbers overflow and vanish."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _at(value: torch.Tensor, place: int, size: int) -> torch.Tensor:
    if size == 1:
        return value.reshape(1)
    result = torch.zeros(size, dtype=value.dtype, device=value.device)
    result[place] = value
    return result
