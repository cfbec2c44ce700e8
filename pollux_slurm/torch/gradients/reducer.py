"""The DDP communication hook: weighted accumulation, reduction, and the noise scale's norms, on flat buckets.

Legend: a micro-batch has n examples; w = n/B is its weight, B the true size of the step's global batch over
all replicas, and g its mean gradient.

DDP calls the hook once a bucket in *every* backward pass, the accumulating ones included (not under
`no_sync`):

- Before the last micro-batch nothing is sent; w·g is added to a sum (see `micro_batch_sums`). `param.grad`
  then has the micro-batch's own gradient, which the script may clip or zero.
- In the last micro-batch that sum plus w·g is summed over the replicas. The weights of all micro-batches
  add up to 1, so this is exactly the mean over the B examples, whether local batches are even or not. It
  costs no more than the division by which DDP averages.

So every micro-batch of every replica is one independent gradient estimate, whose norm the bucket gives.

A script may also accumulate manually with `no_sync` (see `manual_accumulation`). There the hook is not
called, gradients add up in `param.grad`, and the norm of a micro-batch is that of the difference it made.
With P such micro-batches in a step, U their weighted sum over the replicas, the mean of all parts is U/P.

A loss may be a mean over something else than examples, such as tokens: see `item_average`.
"""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan
from pollux_slurm.torch.gradients.gradient_state import GradientState
from pollux_slurm.torch.gradients.half_batches import tensors_in
from pollux_slurm.torch.gradients.item_average import ItemAverage
from pollux_slurm.torch.gradients.manual_accumulation import ManualAccumulation
from pollux_slurm.torch.gradients.measured_steps import MeasuredSteps
from pollux_slurm.torch.gradients.micro_batch_sums import MicroBatchSums
from pollux_slurm.torch.gradients.preconditioning import GradientMetric, views
from pollux_slurm.torch.gradients.repeated_passes import KEEP_WHOLE, RepeatedPasses
from pollux_slurm.torch.gradients.step_norms import StepNorms
from pollux_slurm.torch.measurement.timestamps import Timestamp

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket
else:
    GradBucket = dist.GradBucket


_OWN_ACCUMULATION = (
    "the script adds up the gradients of several batches itself, and would take micro-batches for batches: "
    "the loader splits each batch, or may do so later (gradient_accumulation=True, a local batch size below "
    "the batch size, or a batch that ran out of memory). Leave accumulation to "
    "the loader: give it the batch size of a whole step and gradient_accumulation=True, and call "
    "optimizer.step() after each backward pass; with accelerate, give PolluxAccelerator the "
    "gradient_accumulation_steps, and step `with accelerator.accumulate(model):`"
)
_BLOCK_IN_SPLIT_BATCH = (
    "a block of no_sync() goes on into a batch that the loader splits into micro-batches: open one for each "
    "batch, or leave gradient accumulation to the loader"
)
_UNUSED_GRADIENTS = (
    "a batch is split into micro-batches, and the gradients of the batch before are neither stepped with nor "
    "zeroed: call optimizer.zero_grad() before each backward pass, and leave gradient accumulation to the "
    "loader"
)

_TWO_STEPS = (
    "an optimizer steps twice in one batch, which is split into micro-batches: the second step would have "
    f"the gradient of the last one alone. {KEEP_WHOLE}; or go over the loader once for each step"
)


class GradientReducer:
    """One model's hook and its buffers. `stamp` returns a timestamp of the gradients' device, or None.

    `reduced` are those of the `parameters` that DDP has in its buckets (all, unless given).
    """

    def __init__(
        self,
        *,
        world_size: int,
        group: dist.ProcessGroup | None,
        stamp: Callable[[], Timestamp | None],
        metric: GradientMetric,
        parameters: Sequence[torch.Tensor],
        reduced: Sequence[torch.Tensor] | None = None,
        finds_unused: bool = False,
    ) -> None:
        self._world_size, self._group, self._stamp = world_size, group, stamp
        self._parameters = parameters
        self._metric = metric
        self._sums = MicroBatchSums(parameters, finds_unused=finds_unused)
        # The parameters whose gradients were dropped before a split batch.
        self._dropped: list[torch.Tensor] = []
        # Whether the loader may split a batch of this loop; whether the script steps after each micro-batch,
        # and not after so many that it counts. A framework that knows micro-batches has set it.
        self.may_split = self.steps_each = False
        self._plan: MicroBatchPlan | None = None
        self._single_pass = True
        self.measured = MeasuredSteps(metric, parameters)
        self._backwards_in_pass = 0
        self._norms = StepNorms()
        self._manual = ManualAccumulation(parameters)
        self._repeated = RepeatedPasses(parameters)
        # By optimizer: how many backward passes over the micro-batch came before its step.
        self._passes_at_step: dict[int, int] = {}
        # The reason for which a backward pass is refused now; None: it is allowed.
        self.refusal: str | None = None
        self.gradients = GradientState(metric, parameters if reduced is None else reduced)
        self._norms_are_invalid = False
        self._is_reduced = False
        self._items = ItemAverage(self._total)
        self.local_end: Timestamp | None = None
        self.sync_end: Timestamp | None = None

    def leave_run(self) -> None:
        """Drop all gradients, between two steps: they may be views of DDP's buckets, which go."""
        self._drop_gradients()
        self.gradients.mark_dropped()
        self._group = None

    def begin_run(self, *, world_size: int, group: dist.ProcessGroup | None) -> None:
        """Reduce over the replicas of another run from now on, in buckets that are laid out anew."""
        self._world_size, self._group = world_size, group
        self.measured.consecutive.begin_run()
        self._norms = StepNorms()

    def begin_micro_batch(self, plan: MicroBatchPlan | None) -> None:
        """Set the plan of the coming micro-batch; None outside of an adaptive loader's loop."""
        if self._manual.is_open:
            self.end_manual_micro_batch()
        if self._is_reduced:
            self._manual.forget()
            self._is_reduced = False
        keeps = plan is not None and plan.index == 0 and plan.is_last and self.may_split and self.is_pending
        self._plan, num_backwards = plan, self._backwards_in_pass
        self.refusal = _OWN_ACCUMULATION if keeps else None
        self._items.begin_micro_batch(plan)
        self._backwards_in_pass = 0
        has_stepped = bool(self.gradients.stepped_in_batch)
        self.gradients.stepped_in_batch.clear()
        self._passes_at_step.clear()
        self._repeated.begin_micro_batch(plan)
        if plan is None:
            self._manual.leave_loop(1.0 / self._world_size)
        elif plan.index > 0:
            self._go_on_in_batch(has_stepped=has_stepped, num_backwards=num_backwards)
            return
        elif self._manual.is_open or self._manual.num_micro_batches:
            self._manual.begin_micro_batch(plan)
            if self._manual.is_open and not plan.is_last:
                raise UsageError(_BLOCK_IN_SPLIT_BATCH)
            if self._manual.num_micro_batches:
                # Another batch of a step that the script accumulates itself.
                self._single_pass = plan.is_last
                self._sums.begin_batch()
                return
        self._begin_step(plan)
        self.measured.choose(plan, is_single_part=self._is_single_part)

    def _go_on_in_batch(self, *, has_stepped: bool, num_backwards: int) -> None:
        """Go on with another micro-batch of the same batch."""
        if has_stepped:
            # What came after the step is of another loss (a generator's), and is zeroed in whole batches.
            self.gradients.mark_reduced()
        self.gradients.check_reduced()
        if num_backwards and not self.steps_each:
            raise UsageError(_OWN_ACCUMULATION)
        # `param.grad` then has this micro-batch's own gradient, whether the script zeroes or not.
        self._drop_gradients()

    def _begin_step(self, plan: MicroBatchPlan | None) -> None:
        """Empty what the step before has left."""
        self._sums.begin_step()
        self._dropped.clear()
        self._norms, self._norms_are_invalid = StepNorms(), False
        self.local_end = self.sync_end = None
        self._single_pass = plan is None or plan.is_last
        if not self._single_pass:
            self._clear_used_gradients()
        self.measured.begin_step()

    @property
    def _is_single_part(self) -> bool:
        return self._single_pass and self._world_size == 1 and not self._manual.num_micro_batches

    def begin_forward(self) -> None:
        """Begin a forward pass."""
        if torch.is_grad_enabled():
            self._repeated.begin_forward(
                self._backwards_in_pass, is_over=self.gradients.has_stepped_in_batch(None)
            )

    def end_forward(self, output: Any) -> None:
        """See the output of a forward pass."""
        if self.refusal in (_UNUSED_GRADIENTS, _OWN_ACCUMULATION):
            self.measured.halves.cancel()
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._look_for_gradients)
        if self.measured.halves.is_measuring:
            self.measured.halves.watch(output)

    def _look_for_gradients(self, gradient: torch.Tensor) -> None:
        """Before a backward pass that would be refused, allow it where they were cleared by hand."""
        if self.refusal not in (_UNUSED_GRADIENTS, _OWN_ACCUMULATION):
            return
        if not any(p.grad is not None and p.grad.any() for p in self._parameters):
            self.refusal = None
            self.gradients.mark_dropped()

    def put_off(self, optimizer: int) -> None:
        """Record that an optimizer's step is put off. Raises `UsageError` at a second one of the batch."""
        if self._passes_at_step.setdefault(optimizer, self._backwards_in_pass) < self._backwards_in_pass:
            raise UsageError(_TWO_STEPS)
        self.gradients.stepped_in_batch.add(optimizer)

    def zeroed(self, optimizer: int | None = None, *, keeps_zeros: bool = False) -> None:
        """Record that the script zeroes the gradients (of one optimizer, by its index).

        With `keeps_zeros` (`set_to_none=False`) it wants zeros, also where a gradient was dropped before.
        """
        if keeps_zeros:
            for parameter in self._dropped:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                    self._sums.note_zeros(parameter)
        if self.gradients.mark_zeroed(optimizer) and self.refusal in (_UNUSED_GRADIENTS, _OWN_ACCUMULATION):
            self.refusal = None
        own = range(self._metric.num_optimizers) if optimizer is None else (optimizer,)
        self._repeated.zeroed(
            lambda: self._metric.parameters_of(own),
            is_stepped=self.gradients.has_stepped_in_batch(optimizer),
        )
        self._manual.zeroed(self._plan)

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _clear_used_gradients(self) -> None:
        """Before the first of several micro-batches, drop gradients that were stepped with."""
        if not self.gradients.may_be_nonzero:
            return
        if self.gradients.has_unused:
            self.refusal = _UNUSED_GRADIENTS
        else:
            self._dropped = [parameter for parameter in self._parameters if parameter.grad is not None]
            self._drop_gradients()

    def begin_manual_accumulation(self) -> None:
        """Begin a `no_sync` block."""
        self.measured.begin_manual_accumulation()
        self._manual.open()
        if self._plan is not None:
            self._manual.begin_micro_batch(self._plan)

    def end_manual_accumulation(self) -> None:
        """End a `no_sync` block."""
        self._manual.is_open = False

    def end_manual_micro_batch(self) -> None:
        """Take in a micro-batch under `no_sync`: no hook was called, its gradient is in `param.grad`."""
        plan, manual = self._plan, self._manual
        if not manual.has_added:
            return
        if self.refusal is not None:
            raise UsageError(self.refusal)
        if not manual.num_micro_batches and self.gradients.has_leftover:
            self._norms_are_invalid = True
        self.gradients.mark_computed()
        if plan is not None:
            manual.end_micro_batch(plan)
        # After padding's gradients are removed, so that they do not count as added.
        manual.open()
        if plan is None:
            return
        if not self.measured.measures or self._norms_are_invalid or plan.is_padding:
            return
        present = [(p, p.grad) for p in self._parameters if p.grad is not None]
        added = [
            gradient if before is None else gradient - before
            for parameter, gradient in present
            for before in [manual.newest.get(id(parameter))]
        ]
        if present:
            norms = self._metric.squared_norms_of([parameter for parameter, _ in present], added)
            self._norms.parts.append(norms * plan.size)
        manual.newest = {id(parameter): gradient.clone() for parameter, gradient in present}

    def average_over(self, num_items: float) -> float | None:
        """Set of how many items the present micro-batch's loss is the mean: see `item_average`."""
        if self._plan is None:
            raise UsageError("average_over() outside of a loop over an AdaptiveDataLoader")
        if self._manual.is_open or self._manual.num_micro_batches:
            raise UsageError(
                "average_over() with gradients that the script accumulates: leave accumulation to the loader"
            )
        return self._items.count(self._plan, num_items)

    def _total(self, number: float) -> float:
        """Add up a number over the replicas."""
        if self._world_size == 1:
            return number
        sums = torch.tensor(number, dtype=torch.float64, device=self._parameters[0].device)
        dist.all_reduce(sums, group=self._group)
        return sums.item()

    @property
    def is_accumulating(self) -> bool:
        """True in a micro-batch after which the optimizer must not step yet."""
        return self._plan is not None and not self._plan.is_last

    @property
    def is_in_loop(self) -> bool:
        """True within a loop over an adaptive loader."""
        return self._plan is not None

    @property
    def is_split(self) -> bool:
        """True while the loader splits a global batch into micro-batches, which this class adds up."""
        return self._plan is not None and not self._single_pass

    @property
    def is_manual(self) -> bool:
        """True between `begin_manual_accumulation` and its end."""
        return self._manual.is_open

    @property
    def is_pending(self) -> bool:
        """True while gradients wait for a step: those of whole batches that the script adds up."""
        if self._manual.is_open and self._manual.has_added:
            return True
        return self._manual.num_micro_batches > 0 or self.gradients.is_pending

    def take_norms(self) -> StepNorms | None:
        """Return the norms of the step just reduced; None without a reduction, or where they are invalid."""
        norms, measured = self._norms, self.measured
        self.gradients.is_used = True
        self._manual.forget()
        if measured.halves.is_measuring:
            norms.parts, norms.num_parts = measured.halves.take(), 2
        # A second backward pass over the same batch would measure a gradient that was reduced already.
        if (
            self._backwards_in_pass != 1
            or not (norms.mean or norms.is_single_part)
            or (measured.by_halves and not norms.parts)
            or self._norms_are_invalid
        ):
            measured.consecutive.forget()
            return None
        return norms

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Process one bucket of one backward pass; the future's value becomes `param.grad`."""
        del state
        if bucket.index() == 0:
            self._begin_backward()
        plan, measured = self._plan, self.measured
        if bucket.is_last():
            self.gradients.mark_reduced()
            if plan is not None and not self._single_pass:
                self._sums.complete_backward(is_last=plan.is_last)
        gradient, norms = bucket.buffer(), None
        self._repeated.take_out(bucket)
        weight = 1.0 / self._world_size if plan is None else plan.weight
        by_items = self._items.weight(plan)
        if by_items is not None:
            weight = by_items
            if weight == 0.0:
                # Not multiplied below: the mean gradient of no items is not a number.
                gradient.zero_()
        if plan is not None and plan.is_padding:
            # Zeroed, not multiplied by zero: the gradient of padding may be infinite.
            gradient.zero_()
            weight = self._manual.put_back(bucket)
        elif plan is not None and measured.measures and not self._is_single_part:
            norms = self._metric.on(bucket)
            self._norms.parts.append(norms.squared(self._own_gradient(bucket)) * plan.size)
        if plan is not None and not plan.is_last:
            # The gradients that an optimizer steps with are those of before its step.
            stepped = self.gradients.stepped_in_batch if self._backwards_in_pass > 1 else ()
            self._sums.add(bucket, weight, without=self._metric.parameters_of(stepped) if stepped else ())
            self._repeated.put_back(bucket, gradient)
            return _done(gradient)
        if weight != 1.0:
            gradient.mul_(weight)
        if self._backwards_in_pass == 1:
            self._sums.add_to(bucket)
        if self._items.divisor != 1.0:
            gradient.div_(self._items.divisor)
        if bucket.is_last():
            self.local_end = self._stamp()
            self._is_reduced = True
        if self._world_size > 1:
            return self._reduce(bucket)
        self._repeated.put_back(bucket, gradient)
        if plan is not None and measured.measures:
            if measured.halves.is_measuring:
                self._norms.mean[bucket.index()] = measured.halves.measure(bucket)
            elif not self._is_single_part:
                self._norms.mean[bucket.index()] = (norms or self._metric.on(bucket)).squared(gradient)
            elif not measured.by_halves:
                measured.consecutive.compare(bucket, plan.size, self._norms)
        if bucket.is_last():
            self.sync_end = self.local_end
        return _done(gradient)

    def _begin_backward(self) -> None:
        if self.refusal is not None:
            raise UsageError(self.refusal)
        self._items.check()
        self.measured.consecutive.begin_backward()
        self._backwards_in_pass += 1
        self._repeated.begin_pass(self._backwards_in_pass, is_over=self.gradients.has_stepped_in_batch(None))
        if not self._manual.num_micro_batches and self._single_pass and self.gradients.has_leftover:
            # The norm would be that of a sum of two batches.
            self._norms_are_invalid = True
        # Each part of the step would be one loss of several.
        self._norms_are_invalid = self._norms_are_invalid or self._backwards_in_pass > 1
        self._norms_are_invalid = self._norms_are_invalid or not self._manual.is_even
        self.gradients.mark_computed()
        # Now, because the script may zero the gradients before `take_norms`.
        self._norms.num_manual = self._manual.num_micro_batches + 1

    def _own_gradient(self, bucket: GradBucket) -> torch.Tensor:
        """Return the gradient of this micro-batch alone, laid out like its bucket."""
        gradient = bucket.buffer()
        if not self._manual.newest:
            return gradient
        alone = gradient.clone()
        for parameter, view in zip(bucket.parameters(), views(alone, bucket), strict=True):
            before = self._manual.newest.get(id(parameter))
            if before is not None:
                view.sub_(before)
        return alone

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Sum the bucket over the replicas; measure norm and time before the script can change it."""
        index, is_last, norms = bucket.index(), bucket.is_last(), self._norms
        metric, measures = self._metric, self.measured.measures
        work = dist.all_reduce(bucket.buffer(), group=self._group, async_op=True)

        def finish(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            reduced = done.value()[0]
            self._repeated.put_back(bucket, reduced)
            if measures:
                norms.mean[index] = metric.squared_norms(reduced, bucket)
            if is_last:
                self.sync_end = self._stamp()
            return reduced

        future: torch.futures.Future[torch.Tensor] = work.get_future().then(finish)
        return future


def _done(gradient: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(gradient)
    return future
