"""The DDP communication hook: weighted accumulation, reduction, and the noise scale's norms, on flat buckets.

Legend: a pass is one forward and backward over one local batch of n examples; w = n/B its weight, B the true
size of the step's global batch over all replicas and passes; g its mean gradient.

DDP calls the hook once a bucket in *every* pass, the accumulating ones included (not under `no_sync`):

- in all but the last pass nothing is sent; w·g is added to a buffer of this class. `param.grad` then holds
  the pass's own gradient, which the script may clip or zero as it likes;
- in the last pass the buffer plus w·g is summed over the replicas. As the weights of all cells add up to 1,
  this is exactly the mean over the B examples, whether local batches are even or not (invariant 3), for the
  price of the division that averaging takes anyway.

So every pass of every replica is one independent gradient estimate whose norm is read off the bucket.

A script may accumulate by hand, too, with `no_sync` (see `manual_accumulation`): there the hook is not
called, gradients add up in `param.grad`, and the norm of a pass is that of the difference to what was there
before it. With P such passes in a step, U their weighted sum over the replicas, the mean of all parts is U/P.
"""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.data.micro_batches import PassPlan
from pollux_slurm.torch.gradients.consecutive_steps import Consecutive
from pollux_slurm.torch.gradients.gradient_state import HeldGradients
from pollux_slurm.torch.gradients.manual_accumulation import ByHand
from pollux_slurm.torch.gradients.preconditioning import GradientMetric, views
from pollux_slurm.torch.gradients.step_norms import StepNorms
from pollux_slurm.torch.measurement.timestamps import Instant

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket
else:
    GradBucket = dist.GradBucket


# Norms are taken of so many steps at first, then of every so-manieth: they cost a walk over the gradient, and
# several where it is preconditioned. One replica with one pass compares two neighbouring steps, half as
# often.
_ALWAYS_MEASURED = 32
_PERIOD = 4
_PERIOD_PRECONDITIONED = 8
_UNSPENT = (
    "a batch is split into passes, and the gradients of the batch before are neither stepped with nor "
    "zeroed: call optimizer.zero_grad() before each backward pass, and leave gradient accumulation to the "
    "loader"
)


class GradientReducer:
    """One model's hook and its buffers. `stamp` makes a time stamp on the gradients' device, if wanted.

    `reduced` are those of the `parameters` that DDP has in its buckets (all, unless given).
    """

    def __init__(
        self,
        *,
        world_size: int,
        group: dist.ProcessGroup | None,
        stamp: Callable[[], Instant | None],
        metric: GradientMetric,
        parameters: Sequence[torch.Tensor],
        reduced: Sequence[torch.Tensor] | None = None,
        finds_unused: bool = False,
    ) -> None:
        self._world_size, self._group, self._stamp = world_size, group, stamp
        self._parameters = parameters
        self._metric = metric
        self._finds_unused = finds_unused
        self._reduced_held: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._plan: PassPlan | None = None
        self._single_pass = True
        # By parameter, because DDP regroups its buckets after the first backward pass.
        self._held: dict[int, torch.Tensor] = {}
        self._holding: set[int] = set()
        self._consecutive = Consecutive(metric)
        self._num_steps = self._num_measured = 0
        self._measures = False
        self._backwards_in_pass = 0
        self._norms = StepNorms()
        self._hand = ByHand(parameters)
        # Why no backward pass may come now; None where it may.
        self.refusal: str | None = None
        self.held = HeldGradients(metric, parameters if reduced is None else reduced)
        self._is_spoiled = False
        self._is_reduced = False
        self.local_end: Instant | None = None
        self.sync_end: Instant | None = None

    def begin_pass(self, plan: PassPlan | None) -> None:
        """Tell what the coming backward pass is; None outside an adaptive loader's loop."""
        if self._hand.is_open:
            self.end_pass_by_hand()
        if self._is_reduced:
            self._hand.forget()
            self._is_reduced = False
        self._plan, self.refusal = plan, None
        self._backwards_in_pass = 0
        if plan is None:
            self._hand.leave_loop(1.0 / self._world_size)
        elif plan.index > 0:
            self.held.check_reduced()
            # This pass's own gradient is to stand there alone, whether the script zeroes or not.
            self._drop_gradients()
        elif self._hand.is_open or self._hand.num_passes:
            self._hand.begin_pass(plan)
            if self._hand.is_open and not plan.is_last:
                raise UsageError(
                    "a block of no_sync() goes on into a batch that the loader splits into passes: open one "
                    "for each batch, or leave gradient accumulation to the loader"
                )
            if self._hand.num_passes:
                # Another batch of a step that the script accumulates.
                self._single_pass = plan.is_last
                self._holding.clear()
                return
        if plan is None or plan.index == 0:
            self._holding.clear()
            self._reduced_held.clear()
            self._norms = StepNorms()
            self.local_end = self.sync_end = None
            self._single_pass = plan is None or plan.is_last
            self._num_steps += 1
            self._is_spoiled = False
            if not self._single_pass:
                self._make_room()
            self._measures = plan is not None and self._is_due() and self._metric.begin_step()
            self._num_measured += self._measures
            if not (self._measures and self._is_alone):
                self._consecutive.forget()

    @property
    def _is_alone(self) -> bool:
        return self._single_pass and self._world_size == 1 and not self._hand.num_passes

    def _is_due(self) -> bool:
        if self._num_measured < _ALWAYS_MEASURED:
            return True
        period = _PERIOD_PRECONDITIONED if self._metric.preconditions else _PERIOD
        if self._is_alone:
            return self._num_steps % (2 * period) < 2
        return self._num_steps % period == 0

    @property
    def schedule(self) -> list[int]:
        """Where the schedule of measured steps stands: kept over restarts, so that they change nothing."""
        return [self._num_steps, self._num_measured]

    @schedule.setter
    def schedule(self, value: list[int]) -> None:
        self._num_steps, self._num_measured = value

    def zeroed(self, optimizer: int | None = None) -> None:
        """Tell that the script has zeroed the gradients (those of one optimizer, by its place)."""
        if self.held.zeroed(optimizer) and self.refusal == _UNSPENT:
            self.refusal = None
        self._hand.zeroed(self._plan)

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _make_room(self) -> None:
        """Before the first of several passes: do away with gradients that were stepped with."""
        if not self.held.is_held:
            return
        if self.held.are_left:
            self.refusal = _UNSPENT
        else:
            self._drop_gradients()

    def begin_by_hand(self) -> None:
        """Take in that a `no_sync` block begins."""
        self._hand.open()
        if self._plan is not None:
            self._hand.begin_pass(self._plan)

    def end_by_hand(self) -> None:
        """Take in that it has ended."""
        self._hand.is_open = False

    def end_pass_by_hand(self) -> None:
        """Take in a pass under `no_sync`, which calls no hook: it has added to `param.grad`."""
        plan, hand = self._plan, self._hand
        if not hand.has_added:
            return
        if self.refusal is not None:
            raise UsageError(self.refusal)
        if not hand.num_passes and self.held.are_added_to:
            self._is_spoiled = True
        self.held.computed()
        if plan is not None:
            hand.end_pass(plan)
        # Now, that a stand-in's gradients are gone: another's might be taken for them.
        hand.open()
        if plan is None:
            return
        if not self._measures or self._is_spoiled or plan.is_padding:
            return
        held = [(p, p.grad) for p in self._parameters if p.grad is not None]
        passes = [
            gradient if before is None else gradient - before
            for parameter, gradient in held
            for before in [hand.newest.get(id(parameter))]
        ]
        if held:
            norms = self._metric.squared_norms_of([parameter for parameter, _ in held], passes)
            self._norms.parts.append(norms * plan.size)
        hand.newest = {id(parameter): gradient.clone() for parameter, gradient in held}

    @property
    def is_accumulating(self) -> bool:
        """True in a pass after which the optimizer must not step yet."""
        return self._plan is not None and not self._plan.is_last

    @property
    def is_in_loop(self) -> bool:
        """True while an adaptive loader hands out batches."""
        return self._plan is not None

    @property
    def is_split(self) -> bool:
        """True while the loader hands out the passes of one global batch, and this class adds them up."""
        return self._plan is not None and not self._single_pass

    @property
    def is_pending(self) -> bool:
        """True while gradients wait for a step to come: those of whole batches that the script adds up."""
        return self._hand.num_passes > 0 or self.held.is_pending

    def restore_unused(self) -> None:
        """Give back the gradients of parameters that the last pass of a step left out, and earlier ones had.

        With `find_unused_parameters` DDP reduces them but does not hand them out.
        """
        for parameter, gradient in self._reduced_held:
            if parameter.grad is None:
                parameter.grad = gradient.clone()
        self._reduced_held.clear()

    def take_norms(self) -> StepNorms | None:
        """Return the norms of the step just reduced; None where no gradient was, or its norms say nothing."""
        norms, self._norms = self._norms, StepNorms()
        self.held.is_spent = True
        self._hand.forget()
        # A second backward pass over the same batch met a gradient that was reduced already.
        if self._backwards_in_pass != 1 or not (norms.mean or norms.is_alone) or self._is_spoiled:
            self._consecutive.forget()
            return None
        return norms

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take in one bucket of one backward pass; the future holds what becomes `param.grad`."""
        del state
        if bucket.index() == 0:
            self._begin_backward()
        if bucket.is_last():
            self.held.reduced()
        gradient = bucket.buffer()
        plan = self._plan
        weight = 1.0 / self._world_size if plan is None else plan.weight
        if plan is not None and plan.is_padding:
            # Zeroed, not multiplied by zero: the stand-in's gradient may be infinite.
            gradient.zero_()
            weight = self._hand.put_back(bucket)
        elif plan is not None and self._measures and not self._is_alone:
            self._norms.parts.append(self._metric.squared_norms(self._of_pass(bucket), bucket) * plan.size)
        if plan is not None and not plan.is_last:
            self._hold(bucket, weight)
            return _done(gradient)
        if weight != 1.0:
            gradient.mul_(weight)
        self._add_held(bucket)
        if bucket.is_last():
            self.local_end = self._stamp()
            self._is_reduced = True
        if self._world_size > 1:
            return self._reduce(bucket)
        if plan is not None and self._measures:
            if self._is_alone:
                self._consecutive.compare(bucket, plan.size, self._norms)
            else:
                self._norms.mean[bucket.index()] = self._metric.squared_norms(gradient, bucket)
        if bucket.is_last():
            self.sync_end = self.local_end
        return _done(gradient)

    def _begin_backward(self) -> None:
        if self.refusal is not None:
            raise UsageError(self.refusal)
        self._consecutive.begin_backward()
        self._backwards_in_pass += 1
        if self._backwards_in_pass > 1 and not self._single_pass:
            raise UsageError(
                "two backward passes over one batch cannot be combined with gradient accumulation; add the "
                "losses and call backward once, or allow no accumulation in autoscale_batch_size"
            )
        if not self._hand.num_passes and self._single_pass and self.held.are_added_to:
            # The norm would be that of a sum of two batches.
            self._is_spoiled = True
        self._is_spoiled = self._is_spoiled or not self._hand.is_even
        self.held.computed()
        # Kept now: the script may zero the gradients before anybody asks.
        self._norms.num_by_hand = self._hand.num_passes + 1

    def _of_pass(self, bucket: GradBucket) -> torch.Tensor:
        """Return what this pass alone has added to a bucket, laid out like it."""
        gradient = bucket.buffer()
        if not self._hand.newest:
            return gradient
        alone = gradient.clone()
        for parameter, view in zip(bucket.parameters(), views(alone, bucket), strict=True):
            before = self._hand.newest.get(id(parameter))
            if before is not None:
                view.sub_(before)
        return alone

    def _hold(self, bucket: GradBucket, weight: float) -> None:
        """Add a pass's weighted gradient to what this step has accumulated."""
        pairs = [(id(p), g) for p, g in zip(bucket.parameters(), bucket.gradients(), strict=True)]
        first = [(key, gradient) for key, gradient in pairs if key not in self._holding]
        further = [(self._held[key], gradient) for key, gradient in pairs if key in self._holding]
        if further:
            torch._foreach_add_([held for held, _ in further], [g for _, g in further], alpha=weight)
        if first:
            for key, _ in first:
                # Given back before as much is asked for.
                self._held.pop(key, None)
            self._held.update(
                zip([key for key, _ in first], torch._foreach_mul([g for _, g in first], weight), strict=True)
            )
            self._holding.update(key for key, _ in first)

    def _add_held(self, bucket: GradBucket) -> None:
        if not self._holding:
            return
        pairs = [
            (gradient, self._held[id(parameter)])
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
            if id(parameter) in self._holding
        ]
        if pairs:
            torch._foreach_add_([g for g, _ in pairs], [h for _, h in pairs])
        if self._finds_unused:
            self._reduced_held += zip(bucket.parameters(), bucket.gradients(), strict=True)

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Sum the bucket over the replicas; take the norm and the time before the script can touch it."""
        index, is_last, norms, measures = bucket.index(), bucket.is_last(), self._norms, self._measures
        metric = self._metric
        work = dist.all_reduce(bucket.buffer(), group=self._group, async_op=True)

        def finish(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            reduced = done.value()[0]
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
