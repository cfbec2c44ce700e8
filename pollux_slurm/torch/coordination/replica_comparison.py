"""Compare the replicas' weights, which are the same while each step is the same on all replicas.

Each replica sums the bits of each of its parameters as whole numbers, which is exact in any order. Where the
sums differ, the parameters are compared with rank 0's, because bits may differ by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch

from pollux_slurm.errors import UsageError
from pollux_slurm.model import JobWarning
from pollux_slurm.torch.coordination.side_channel import SideChannel
from pollux_slurm.torch.coordination.training_faults import TrainingFaults

# Relative to a parameter's norm. Replicas on different devices may round differently by a few units in the
# last place. That does not grow, because all step with one gradient.
_TOLERANCE = 1e-4
_TOLERANCE_UNITS = 2.0
# Comparisons after 1, 4, 16, ... batches, and after each so many.
_PERIOD = 1024
_CAUSES = (
    "Likely causes: weights that something other than an optimizer given to AdaptiveDataParallel changes "
    "(new initial values, a file read by one replica), gradients that are changed at random or by a "
    "replica's own numbers, a forward through a part of model.module"
)
_UNKNOWN = (
    "{name!r} can be trained, but could not when AdaptiveDataParallel was made (it was frozen, or not "
    "there): its gradients are not summed over the replicas. Let all parameters that will be trained require "
    "gradients when the model is wrapped, and freeze them after it (with find_unused_parameters=True)"
)
_GONE = (
    "parameters that AdaptiveDataParallel has wrapped do not belong to the model now: code has replaced them "
    "(as sharding does, FSDP for example, which a job that moves cannot have). Change the model first, then "
    "make its optimizer, then wrap it, once"
)
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_time_to_compare(num_batches: int) -> bool:
    """Return whether the weights are compared after so many batches of a run."""
    is_power_of_four = num_batches & (num_batches - 1) == 0 and num_batches.bit_length() % 2 == 1
    return num_batches % _PERIOD == 0 or is_power_of_four


class WeightComparison:
    """Compares the parameters of one model, but for those named in `exempt` (or within a module so named).

    `known` are those whose gradients are summed over the replicas. Raises `UsageError` for a name that fits
    none.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        known: Collection[torch.Tensor],
        exempt: Collection[str],
        side_channel: SideChannel[Any],
        faults: TrainingFaults,
    ) -> None:
        self._model, self._exempt, self._wrapped = model, tuple(exempt), tuple(known)
        self._side_channel, self._faults = side_channel, faults
        self._has_reported = False
        names = [name for name, _ in model.named_parameters()]
        for own in self._exempt:
            if not any(is_within(name, own) for name in names):
                raise UsageError(f"exempt_from_comparison={own!r} is not a parameter or module of the model")

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        return {
            name: parameter
            for name, parameter in self._model.named_parameters()
            if not any(is_within(name, own) for own in self._exempt)
        }

    def check_parameters(self) -> None:
        """Raise `UsageError` where the trained parameters are not those that were wrapped."""
        known = {id(parameter) for parameter in self._wrapped}
        for name, parameter in self._parameters().items():
            if parameter.requires_grad and id(parameter) not in known:
                raise UsageError(_UNKNOWN.format(name=name))
        known -= {id(parameter) for parameter in self._model.parameters()}
        if known:
            raise UsageError(_GONE)

    def begin_run(self) -> None:
        """Compare again where a difference was reported: other replicas have joined, which know of none."""
        self._has_reported = False

    def compare(self) -> None:
        """Compare the weights over the replicas. Called on all of them at the same boundary.

        A difference is reported once; under `strict` it raises `TrainingError` on all of them.
        """
        self.check_parameters()
        if self._side_channel.world_size == 1 or self._has_reported:
            return
        parameters = self._parameters()
        sums = self._side_channel.gather(bit_sums(list(parameters.values())))
        if all(torch.equal(other, sums[0]) for other in sums):
            return
        worst = self._worst(parameters, sums)
        if worst is None:
            return
        self._has_reported = True
        share, rank, name = worst
        self._faults.report(
            JobWarning.REPLICAS_DIFFER,
            f"the replicas' weights differ: {name!r} on replica {rank} by {percentage(share)} from replica "
            f"0, whose weights alone are kept. {_CAUSES} (docs/training.md, Replicas that differ)",
        )

    def _worst(
        self, parameters: dict[str, torch.nn.Parameter], sums: list[torch.Tensor]
    ) -> tuple[float, int, str] | None:
        """Return relative difference, rank and parameter of the largest difference; None: rounding only."""
        differing = (torch.stack(sums) != sums[0]).any(dim=0).tolist()
        found: list[Any] = [0.0, ""]
        for (name, parameter), differs in zip(parameters.items(), differing, strict=True):
            if differs:
                mine = parameter.detach()
                share = relative_difference(mine.cpu(), self._side_channel.broadcast(mine))
                if share > max(found[0], tolerance(parameter.dtype)):
                    found = [share, name]
        each = [(share, rank, name) for rank, (share, name) in enumerate(self._side_channel.gather(found))]
        worst = max(each)
        return worst if worst[0] > 0.0 else None


def percentage(share: float) -> str:
    """Return a relative difference as text."""
    return f"{100 * share:.2g} %" if math.isfinite(share) else "infinitely much"


def is_within(name: str, own: str) -> bool:
    """Return whether a parameter has the name `own`, or is in a module of that name."""
    return name == own or name.startswith(f"{own}.")


def bit_sums(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return, of shape `(T,)`, the sum of each tensor's bits, read as whole numbers, as `int64`."""
    sums: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        bits = tensor.detach()
        bits = torch.view_as_real(bits) if bits.is_complex() else bits
        width = bits.element_size()
        if bits.is_contiguous() and bits.numel() * width % 8 == 0 and bits.storage_offset() * width % 8 == 0:
            # Eight bytes at a time: a tenth of the time of sums that need a wider type.
            total = bits.view(-1).view(torch.int64).sum()
        else:
            total = bits.view(_WHOLE[width]).sum(dtype=torch.int64)
        sums.setdefault(total.device, []).append((index, total))
    result = torch.zeros(len(tensors), dtype=torch.int64)
    for found in sums.values():
        # One wait for each device.
        result[[index for index, _ in found]] = torch.stack([total for _, total in found]).cpu()
    return result


def relative_difference(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return |mine − theirs| over |theirs|; infinite where values that are not finite differ."""
    mine, theirs = (value.to(torch.promote_types(value.dtype, torch.float32)) for value in (mine, theirs))
    is_same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    difference = torch.where(is_same, 0.0, mine - theirs)
    if not bool(difference.isfinite().all()):
        return math.inf
    apart, size = difference.norm().item(), theirs[theirs.isfinite()].norm().item()
    return apart / size if size > 0 else math.inf if apart > 0 else 0.0


def tolerance(kind: torch.dtype) -> float:
    """Return the relative difference of parameters that rounding may explain."""
    return max(_TOLERANCE, _TOLERANCE_UNITS * torch.finfo(kind).eps if kind.is_floating_point else 0.0)
