"""Measure gradient noise in a whole step of one replica: a second gradient at the same weights.

Legend: a step has n examples, of which A are the first half (n_A) and B the others (n_B). out is the model's
output, one row for each example; u = ∂L/∂out, where the loss L is a mean over the examples.

The backward pass is linear in u. So with row i of u multiplied by n/n_A in A, by −n/n_B in B, one more pass
through the model gives g_A − g_B, the difference of the halves' mean gradients. For two parts the summand of
the variance is (n_A·n_B/n)·|g_A − g_B|². The weights are the same, so no drift is in it. What the loss has
besides the output, such as a penalty on weights, is the same in both halves and cancels.

The pass runs as soon as u is known, before the script's own backward pass has gone through the model, and
leaves that one's gradients as they are, to the last bit. It runs torch's own code alone: where the model's
backward pass has hooks or other Python code, it is not made. Where the loss is computed within the model, or
it is called several times a step, or its output is differentiated otherwise (a gradient penalty), there is no
such u: see `consecutive_steps`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from pollux_slurm.torch.gradients.autograd_engine import calls_python, num_hooks, sets_gradients
from pollux_slurm.torch.gradients.preconditioning import GradientMetric

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


class HalfBatches:
    """The difference of the two halves of a step's examples.

    `is_possible` is False once a step has shown that this model or script allows no second pass.
    `is_measuring` is True in a step that is measured.
    """

    def __init__(self, metric: GradientMetric, parameters: Sequence[torch.Tensor]) -> None:
        self._metric, self._parameters = metric, parameters
        self.is_possible, self.is_measuring = True, False
        # The examples of the step.
        self._size = 0
        # The watched output, until its gradient is known, and the node that computed it.
        self._output: torch.Tensor | None = None
        self._node: Any = None
        self._num_hooks = 0
        # g_A − g_B by parameter, until its bucket is measured; None until they are known.
        self._differences: dict[int, torch.Tensor] | None = None
        self._parts: list[torch.Tensor] = []

    def begin_step(self, size: int) -> None:
        """Measure the coming step, of `size` ≥ 2 examples."""
        self.cancel()
        self.is_measuring, self._size, self._num_hooks = True, size, num_hooks()

    def cancel(self) -> None:
        """Do not measure this step."""
        self.is_measuring, self._output, self._node = False, None, None
        self._differences, self._parts = None, []

    def watch(self, output: Any) -> None:
        """See the output of a forward pass in a step that is measured."""
        if not torch.is_grad_enabled():
            return
        rows = [tensor for tensor in tensors_in(output) if tensor.grad_fn is not None]
        if self._node is not None or len(rows) != 1 or not _has_rows(rows[0], self._size):
            self._refuse()
            return
        self._output, self._node = rows[0], rows[0].grad_fn
        rows[0].register_hook(self._measure)
        self._num_hooks += 1

    def measure(self, bucket: GradBucket) -> torch.Tensor:
        """Return |ḡ|² of a bucket, and measure the differences of its parameters in the same metric."""
        norms = self._metric.on(bucket)
        mean_sqr = norms.squared(bucket.buffer())
        if self._differences is not None:
            half = self._size // 2
            spread = norms.squared_of(self._differences) * (half * (self._size - half) / self._size)
            self._parts.append(spread + mean_sqr * self._size)
        return mean_sqr

    def take(self) -> list[torch.Tensor]:
        """Return S = n·|ḡ|² + (n_A·n_B/n)·|g_A − g_B|² of each bucket of the step, and end it."""
        parts = self._parts
        if not parts:
            self._refuse()
        self.cancel()
        return parts

    def _refuse(self) -> None:
        self.is_possible = False
        self.cancel()

    def _measure(self, gradient: torch.Tensor) -> None:
        output, self._output = self._output, None
        parameters = [parameter for parameter in self._parameters if parameter.requires_grad]
        if output is None or not parameters:
            return
        if (
            # It was changed in place, and this gradient is that of its former value.
            output.grad_fn is not self._node
            # This gradient is that of something else than the loss.
            or not sets_gradients(parameters)
            # The hooks of this forward, then those of the parameters, then all other Python code.
            or num_hooks() != self._num_hooks
            or any(parameter._backward_hooks for parameter in parameters)
            or calls_python(self._node)
        ):
            self._refuse()
            return
        size, half = self._size, self._size // 2
        signs = torch.full((size,), size / half, dtype=gradient.dtype, device=gradient.device)
        signs[half:] = -size / (size - half)
        signed = gradient * signs.view(size, *(1,) * (gradient.dim() - 1))
        try:
            differences = torch.autograd.grad(
                output, parameters, signed, retain_graph=True, allow_unused=True
            )
        except RuntimeError:
            # Such as too little memory for further gradients.
            self._refuse()
            return
        self._differences = {
            id(parameter): one
            for parameter, one in zip(parameters, differences, strict=True)
            if one is not None
        }


def tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a forward pass's output, also those in mappings, tuples and lists."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from tensors_in(value)


def _has_rows(tensor: torch.Tensor, size: int) -> bool:
    """Return whether the first dimension, and no other, is that of the examples."""
    return tensor.dim() > 0 and tensor.shape[0] == size and size not in tensor.shape[1:]
