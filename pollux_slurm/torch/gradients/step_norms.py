"""The squared norms of one step: packed on the device, read on the host, made into what ranks add up."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from pollux_slurm.torch.data.micro_batches import StepPlan
from pollux_slurm.torch.gradients.noise_scale import parts_of_consecutive
from pollux_slurm.torch.measurement.timestamps import HostCopy


@dataclass(slots=True)
class StepNorms:
    """Squared norms of one step by parameter group, each of shape `(G,)`, still on the gradients' device.

    `parts` holds n·|g|² of this replica's passes, by bucket; `mean` |ḡ|² by bucket, of the reduced gradient;
    `num_by_hand` is P, the passes that the script itself has accumulated (1 where it does not). `is_alone`
    marks one replica and one pass, for which `previous` is |g_{t−1}|² by bucket, `difference`
    |g_t − g_{t−1}|² and `previous_size` the examples of step t − 1; that is None in the first step of a pair,
    which has no norms.
    """

    parts: list[torch.Tensor] = field(default_factory=list)
    mean: dict[int, torch.Tensor] = field(default_factory=dict)
    num_by_hand: int = 1
    is_alone: bool = False
    previous: list[torch.Tensor] = field(default_factory=list)
    difference: list[torch.Tensor] = field(default_factory=list)
    previous_size: int | None = None

    def packed(self, scale: torch.Tensor | None) -> torch.Tensor | None:
        """Return all in one tensor, so that one transfer reads it; None if there is nothing to read.

        The sums over the buckets, of shape `(G,)` each, of parts and mean (alone: of mean, previous and
        difference), then the gradients' scale where there is one.
        """
        kinds: list[list[torch.Tensor]] = []
        if not self.is_alone:
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
    """What one replica adds to the sums over all of one step: S and |ḡ|² by parameter group, M and C.

    M and C (`num_examples`, `num_parts`) are those over all replicas; C is 0 where the step says nothing.
    """

    parts_sum: tuple[float, ...]
    mean_sqr: tuple[float, ...]
    num_examples: int = 0
    num_parts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """One step's norms as they were taken, perhaps not yet read: M and C, and what `StepNorms` says else.

    `is_empty` where the step said nothing; else `values` are `StepNorms.packed`.
    """

    is_empty: bool = True
    values: HostCopy | None = None
    has_scale: bool = False
    size: int = 0
    num_cells: int = 0
    num_by_hand: int = 1
    is_alone: bool = False
    previous_size: int | None = None


class NormReader:
    """Reads the norms of one model's steps: at once, or `later` (those of the step before, on a GPU, where
    reading the present ones would wait for the device).
    """

    def __init__(self, *, later: bool) -> None:
        self._later = later
        self._held = _Taken()
        # The gradient scale of the step before, where that step was measured alone.
        self._previous_scale: float | None = None

    def read(
        self, norms: StepNorms | None, step: StepPlan, scale: torch.Tensor | None, *, num_groups: int
    ) -> NormSums:
        """Take in one step, of `num_groups` parameter groups, whose gradients are `scale` times the true ones
        (None: 1); return the sums of the step that is to be read now.
        """
        taken = _Taken()
        if norms is not None:
            packed = norms.packed(scale)
            taken = _Taken(
                is_empty=False,
                values=None if packed is None else HostCopy(packed),
                has_scale=scale is not None,
                size=step.size * norms.num_by_hand,
                num_cells=step.num_cells * norms.num_by_hand,
                num_by_hand=norms.num_by_hand,
                is_alone=norms.is_alone,
                previous_size=norms.previous_size,
            )
        if self._later:
            taken, self._held = self._held, taken
        return self._sums(taken, num_groups)

    def _sums(self, taken: _Taken, size: int) -> NormSums:
        nothing = NormSums(parts_sum=(0.0,) * size, mean_sqr=(0.0,) * size)
        previous_scale, self._previous_scale = self._previous_scale, None
        if taken.is_empty:
            return nothing
        norms = [] if taken.values is None else taken.values.read()
        scale = norms.pop() if taken.has_scale else 1.0
        if not scale > 0:
            # Mixed precision has no scale yet.
            return nothing
        # With one replica and one pass: of this step and the one before.
        if taken.is_alone and (taken.previous_size is None or previous_scale != scale):
            self._previous_scale = scale
            return nothing
        num_kinds = 3 if taken.is_alone else 2
        if len(norms) != num_kinds * size:
            # A parameter group was added since.
            return nothing
        kinds = [
            tuple(value / scale**2 for value in norms[start : start + size])
            for start in range(0, num_kinds * size, size)
        ]
        if not taken.is_alone:
            parts, mean = kinds
            return NormSums(
                parts_sum=parts,
                mean_sqr=tuple(value / taken.num_by_hand**2 for value in mean),
                num_examples=taken.size,
                num_parts=taken.num_cells,
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
        )
