"""The metric of gradient norms: plain, or preconditioned as an Adam-like optimizer does.

An optimizer that divides each coordinate by a running root mean square moves along p ⊙ g with
p = 1/(√v̂ + ε). So the noise of p ⊙ g, not of g, determines how much a larger batch is worth. v̂ comes from
steps before the present one, so it does not depend on the gradient that it is applied to.

Norms are separate for each parameter group: those of the first optimizer, then those of the next one. All
work is on flat buckets or with multi-tensor kernels, and every result stays on the gradients' device.
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from pollux_slurm.torch.gradients.scaling_rules import normalises

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

# Where optimizers keep the running mean of squared gradients, the most specific first: AMSGrad; Adam, AdamW,
# NAdam, RAdam, LAMB; RMSprop, Adadelta; Adagrad.
_SECOND_MOMENTS = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")
# Steps after which v̂ is a mean of enough gradients.
_SETTLED_AT = 20
# A coordinate that hardly ever had a gradient (a rare word) has v ≈ 0. Divided by that, its next gradient
# would outweigh all others. The optimizer itself uses v after the step, which bounds it. Here the root mean
# square is at least this part of the whole parameter's.
_FLOOR = 1e-2

# A parameter group's index; the indices of the parameters in it; their c/p, None where norms are plain.
Part = tuple[int, list[int], list[torch.Tensor] | None]


class GradientMetric:
    """Squared norms of gradients, by parameter group of `optimizers`, each in the metric of its optimizer.

    `begin_step` must be called before the norms of a step are taken; within a step the metric is fixed.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._groups: dict[int, int] = {}
        self._num_parameters = -1
        # By optimizer: the number of its steps, None until it was read.
        self._num_steps: list[int | None] = [None] * len(optimizers)
        # By group: its optimizer; c, by which √v is divided, and ε, None where norms are plain.
        self._owners: list[Optimizer] = []
        self._corrections: list[tuple[float, float] | None] = []

    @property
    def num_groups(self) -> int:
        """The number of parameter groups of all optimizers: a norm has one value for each."""
        return sum(len(optimizer.param_groups) for optimizer in self._optimizers)

    @property
    def num_optimizers(self) -> int:
        """The number of optimizers."""
        return len(self._optimizers)

    def has_gradients(self, *, besides: Collection[int]) -> bool:
        """Return whether any parameter has a gradient whose optimizer is not at one of these indices."""
        return any(
            parameter.grad is not None
            for index, optimizer in enumerate(self._optimizers)
            if index not in besides
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def parameters_of(self, indices: Collection[int]) -> set[int]:
        """Return the `id` of each parameter of the optimizers at these indices."""
        return {
            id(parameter)
            for index in indices
            for group in self._optimizers[index].param_groups
            for parameter in group["params"]
        }

    @property
    def preconditions(self) -> bool:
        """True where norms are those of p ⊙ g."""
        return any(correction is not None for correction in self._corrections)

    def stepped(self, index: int) -> None:
        """Count a step of an optimizer."""
        steps = self._num_steps[index]
        if steps is not None:
            self._num_steps[index] = steps + 1

    def restored(self) -> None:
        """Read the numbers of steps again: the optimizers' states were loaded."""
        self._num_steps = [None] * len(self._optimizers)

    def begin_step(self) -> bool:
        """Read the optimizers' states; False while a preconditioner is not settled, so norms mean nothing."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        count = sum(len(group["params"]) for group in groups)
        if count != self._num_parameters:
            self._num_parameters = count
            self._groups = {id(p): index for index, group in enumerate(groups) for p in group["params"]}
        self._owners = [optimizer for optimizer in self._optimizers for _ in optimizer.param_groups]
        self._corrections = []
        is_settled = True
        for index, optimizer in enumerate(self._optimizers):
            is_settled &= self._read_state(index, optimizer)
        return is_settled

    def _read_state(self, index: int, optimizer: Optimizer) -> bool:
        """Add the corrections of an optimizer's groups; False while its preconditioner is not settled."""
        groups = optimizer.param_groups
        state = next(iter(optimizer.state.values()), None)
        if not state or not any(key in state for key in _SECOND_MOMENTS):
            self._corrections += [None] * len(groups)
            # Before its first step only the optimizer's name shows whether it preconditions.
            return bool(state) or not normalises(type(optimizer).__name__)
        num_steps = self._num_steps[index]
        if num_steps is None:
            # Read once and counted afterwards: reading waits for the GPU.
            step = state.get("step", _SETTLED_AT)
            num_steps = int(step.item()) if isinstance(step, torch.Tensor) else int(step)
            self._num_steps[index] = num_steps
        self._corrections += [_correction(group, num_steps) for group in groups]
        return num_steps >= _SETTLED_AT

    def on(self, bucket: GradBucket) -> BucketNorms:
        """Return the norm function for tensors that are laid out as `bucket` is."""
        return BucketNorms(self, bucket)

    def squared_norms(self, flat: torch.Tensor, bucket: GradBucket) -> torch.Tensor:
        """Return |x|² by parameter group, of shape `(num_groups,)`, for a tensor laid out as `bucket` is.

        Parameters without an optimizer do not count.
        """
        return self.on(bucket).squared(flat)

    def squared_norms_of(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Return the same for gradients given one by one."""
        return self.sum_squares(self.parts_of(parameters, gradients), gradients)

    def only_plain_group(self, parameters: Sequence[torch.Tensor]) -> int | None:
        """Return the one group that has all these parameters, if its norms are plain; else None."""
        places = {self._groups.get(id(parameter), -1) for parameter in parameters}
        place = min(places)
        return place if len(places) == 1 and place >= 0 and self._corrections[place] is None else None

    def parts_of(self, parameters: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> list[Part]:
        """Return, by parameter group, which of the parameters are in it, and their c/p."""
        by_group: dict[int, list[int]] = {}
        for index, parameter in enumerate(parameters):
            place = self._groups.get(id(parameter), -1)
            if place >= 0:
                by_group.setdefault(place, []).append(index)
        parts: list[Part] = []
        for group, indices in sorted(by_group.items()):
            correction = self._corrections[group]
            if correction is None:
                parts.append((group, indices, None))
                continue
            state = self._owners[group].state
            moments = {
                index: moment
                for index in indices
                if (moment := _second_moment(state.get(parameters[index]), like[index])) is not None
            }
            if moments:
                # The other parameters never had a gradient.
                parts.append((group, list(moments), _divisors(list(moments.values()), *correction)))
        return parts

    def sum_squares(self, parts: Sequence[Part], gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return |p ⊙ x|² by parameter group for `gradients`, one for each parameter."""
        results = {}
        for group, indices, divisors in parts:
            measured = [_wide(gradients[index]) for index in indices]
            if divisors is not None:
                measured = list(torch._foreach_div(measured, divisors))
            norms = torch.stack(torch._foreach_norm(measured))
            results[group] = torch.dot(norms, norms)
            correction = self._corrections[group]
            if correction is not None:
                results[group] *= correction[0] ** 2
        if len(results) == 1:
            ((group, value),) = results.items()
            return _at(value, group, self.num_groups)
        kind = torch.float64 if gradients and gradients[0].dtype == torch.float64 else torch.float32
        device = gradients[0].device if gradients else None
        total = torch.zeros(self.num_groups, dtype=kind, device=device)
        for group, value in results.items():
            total[group] = value
        return total


class BucketNorms:
    """Norms of tensors that are laid out as one bucket, within one step: p is computed once for all."""

    def __init__(self, metric: GradientMetric, bucket: GradBucket) -> None:
        self._metric, self._bucket = metric, bucket
        self._parameters = bucket.parameters()
        self._group = metric.only_plain_group(self._parameters)
        if self._group is None:
            self._parts = metric.parts_of(self._parameters, bucket.gradients())
        else:
            self._parts = [(self._group, list(range(len(self._parameters))), None)]

    def squared(self, flat: torch.Tensor) -> torch.Tensor:
        """Return |p ⊙ x|² by parameter group, of shape `(num_groups,)`."""
        if self._group is not None:
            wide = _wide(flat)
            return _at(torch.dot(wide, wide), self._group, self._metric.num_groups)
        return self._metric.sum_squares(self._parts, views(flat, self._bucket))

    def squared_of(self, tensors: MutableMapping[int, torch.Tensor]) -> torch.Tensor:
        """Return the same for tensors by the `id` of their parameters, which are taken out of the mapping."""
        own = [tensors.pop(id(parameter), None) for parameter in self._parameters]
        gradients = self._bucket.gradients()
        return self._metric.sum_squares(
            self._parts,
            [
                torch.zeros_like(other) if one is None else one
                for one, other in zip(own, gradients, strict=True)
            ],
        )


@torch.no_grad()
def _divisors(moments: Sequence[torch.Tensor], correction: float, epsilon: float) -> list[torch.Tensor]:
    """Return c/p = √v + εc for parameters of these second moments, with the floor."""
    roots = torch._foreach_sqrt(list(moments))
    # The root mean square over a parameter is the norm of its roots over √D.
    floors = torch._foreach_norm(roots)
    floors = torch._foreach_mul(floors, [_FLOOR / max(root.numel(), 1) ** 0.5 for root in roots])
    torch._foreach_add_(floors, epsilon * correction)
    torch._foreach_add_(roots, list(floors))
    return list(roots)


def _correction(group: dict[str, Any], step: int) -> tuple[float, float]:
    """Return what to divide √v by, so that v̂ is a mean of squares from the first step on, and ε.

    Adam does so itself. For the others it only scales p as a whole, which leaves the ratio φ as it is;
    without it p would shrink while v grows. Adagrad's v is a sum: the mean is that over the steps.
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
    """Return the tensor in at least single precision: squares in half precision over- or underflow."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _at(value: torch.Tensor, place: int, size: int) -> torch.Tensor:
    if size == 1:
        return value.reshape(1)
    result = torch.zeros(size, dtype=value.dtype, device=value.device)
    result[place] = value
    return result
