"""The squared norms of one step: packed on the device, read on the host, turned into sums for the ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from pollux_slurm.torch.data.micro_batches import StepPlan
from pollux_slurm.torch.gradients.noise_scale import parts_of_consecutive
from pollux_slurm.torch.measurement.timestamps import HostCopy


@dataclass(slots=True)
class StepNorms:
    """Squared norms of one step by parameter group, each of shape `(G,)`, still on the gradients' device.

    `parts` holds n·|g|² of this replica's micro-batches, by bucket; `mean` |ḡ|² by bucket, of the reduced
    gradient. `num_manual` is P, the micro-batches that the script itself has accumulated (1 without).
    `num_parts` is C where it is not the number of micro-batches.
    `is_single_part` marks a step of one replica and one micro-batch that is compared with the one before.
    For it `previous` is |g_{t−1}|² by
    bucket, `difference` |g_t − g_{t−1}|² and `previous_size` the examples of step t − 1. That is None in the
    first step of a pair, which has no norms.
    """

    parts: list[torch.Tensor] = field(default_factory=list)
    mean: dict[int, torch.Tensor] = field(default_factory=dict)
    num_manual: int = 1
    num_parts: int | None = None
    is_single_part: bool = False
    previous: list[torch.Tensor] = field(default_factory=list)
    difference: list[torch.Tensor] = field(default_factory=list)
    previous_size: int | None = None

    def packed(self, scale: torch.Tensor | None) -> torch.Tensor | None:
        """Return all in one tensor, which one transfer reads; None if there is nothing to read.

        It has the sums over the buckets, of shape `(G,)` each, of parts and mean (a single part: of mean,
        previous and difference), then the gradients' scale where there is one.
        """
        kinds: list[list[torch.Tensor]] = []
        if not self.is_single_part:
            mean = list(self.mean.values())
            kinds = [self.parts or [torch.zeros_like(mean[0])], mean]
        elif self.previous_size is not None:
            kinds = [list(self.mean.values()), self.previous, self.difference]
        sums = [one[0] if len(one) == 1 else torch.stack(one).sum(dim=0) for one in kinds]
        if scale is not None:
            sums.append(scale.reshape(1).to(sums[0]) if sums else scale.reshape(1))
        return torch.cat(sums) if sums else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSums:
    """One replica's summands, or the sums over all, of one step: S and |ḡ|² by parameter group, M and C.

    M and C (`num_examples`, `num_parts`) are those of all replicas; C is 0 where the step has no norms.
    `drifts` where the parts are gradients of different steps.
    """

    parts_sum: tuple[float, ...]
    mean_sqr: tuple[float, ...]
    num_examples: int = 0
    num_parts: int = 0
    drifts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnreadNorms:
    """One step's norms, perhaps still on the device: `StepNorms.packed`, M, C and its other fields."""

    values: HostCopy | None = None
    has_scale: bool = False
    size: int = 0
    num_nonempty: int = 0
    num_manual: int = 1
    is_single_part: bool = False
    previous_size: int | None = None


# Of a step without norms.
_NO_NORMS = _UnreadNorms()


class NormReader:
    """Reads the norms of one model's steps.

    `later` reads those of the previous step: on a GPU, reading the present ones would wait for the device.
    """

    def __init__(self, *, later: bool) -> None:
        self._later = later
        self._held = _NO_NORMS
        self._nothing = NormSums(parts_sum=(), mean_sqr=())
        # The gradient scale of the previous step, if that step was a single part.
        self._previous_scale: float | None = None

    def read(
        self, norms: StepNorms | None, step: StepPlan, scale: torch.Tensor | None, *, num_groups: int
    ) -> NormSums:
        """Add one step, of `num_groups` parameter groups; return the sums of the step that is read now.

        The step's gradients are `scale` times the true ones (None: 1).
        """
        taken = _NO_NORMS
        if norms is not None:
            packed = norms.packed(scale)
            taken = _UnreadNorms(
                values=None if packed is None else HostCopy(packed),
                has_scale=scale is not None,
                size=step.size * norms.num_manual,
                num_nonempty=norms.num_parts or step.num_nonempty * norms.num_manual,
                num_manual=norms.num_manual,
                is_single_part=norms.is_single_part,
                previous_size=norms.previous_size,
            )
        if self._later:
            taken, self._held = self._held, taken
        # The same object in most steps, as making one takes time.
        if len(self._nothing.mean_sqr) != num_groups:
            self._nothing = NormSums(parts_sum=(0.0,) * num_groups, mean_sqr=(0.0,) * num_groups)
        if taken is _NO_NORMS:
            self._previous_scale = None
            return self._nothing
        return self._sums(taken, num_groups)

    def begin_run(self) -> None:
        """Forget a step that was not read yet: other replicas have its other parts."""
        self._held, self._previous_scale = _NO_NORMS, None

    def _sums(self, taken: _UnreadNorms, size: int) -> NormSums:
        nothing, previous_scale, self._previous_scale = self._nothing, self._previous_scale, None
        norms = [] if taken.values is None else taken.values.read()
        scale = norms.pop() if taken.has_scale else 1.0
        if not scale > 0:
            # The gradient scaler has no scale yet.
            return nothing
        # A single part is compared with the previous step's, which must have the same scale.
        if taken.is_single_part and (taken.previous_size is None or previous_scale != scale):
            self._previous_scale = scale
            return nothing
        num_kinds = 3 if taken.is_single_part else 2
        if len(norms) != num_kinds * size:
            # A parameter group was added meanwhile.
            return nothing
        kinds = [
            tuple(value / scale**2 for value in norms[start : start + size])
            for start in range(0, num_kinds * size, size)
        ]
        if not taken.is_single_part:
            parts, mean = kinds
            return NormSums(
                parts_sum=parts,
                mean_sqr=tuple(value / taken.num_manual**2 for value in mean),
                num_examples=taken.size,
                num_parts=taken.num_nonempty,
            )
        mean, previous, difference = kinds
        assert taken.previous_size is not None
        pairs = [
            parts_of_consecutive(
                previous_sqr=before,
                previous_size=taken.previous_size,
                sqr=now,
                size=taken.size,
                difference_sqr=between,
            )
            for before, now, between in zip(previous, mean, difference, strict=True)
        ]
        return NormSums(
            parts_sum=tuple(parts for parts, _ in pairs),
            mean_sqr=tuple(mean for _, mean in pairs),
            num_examples=taken.previous_size + taken.size,
            num_parts=2,
            drifts=True,
        )
