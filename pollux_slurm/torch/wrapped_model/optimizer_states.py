"""The state of a model's optimizers, which may be spread over the replicas.

A checkpoint has replica 0's. Distributed Muon and Shampoo keep each parameter's state on one replica only; so
what replica 0 lacks is sent to it for each checkpoint. After a restart each replica has all of it, and those
that it does not step grow old.

A *leaf* is one value in the state of one parameter, named by its path `(optimizer, parameter, key, ...)`. A
replica *owns* a leaf that is there, is not zero, and was changed since it was restored.

    owned by all      compared as weights are; a difference is reported
    owned by some     these must have the same; the first one's is kept
    owned by none     replica 0's is kept: nobody has changed it
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from pollux_slurm.errors import UsageError
from pollux_slurm.model import JobWarning
from pollux_slurm.text import some_of
from pollux_slurm.torch.coordination.plain_data import to_plain
from pollux_slurm.torch.coordination.replica_comparison import (
    bit_sums,
    is_time_to_compare,
    is_within,
    percentage,
    relative_difference,
    tolerance,
)
from pollux_slurm.torch.coordination.side_channel import SideChannel
from pollux_slurm.torch.coordination.state_transfer import receive_state, send_state
from pollux_slurm.torch.coordination.training_faults import TrainingFaults

Path = tuple[str | int, ...]

_SPREAD = "its optimizer's state is spread over the replicas, and those that stay would lack what others had"
_DIFFERS = (
    "the optimizers' states differ: {name} on replica {rank} by {share} from replica 0, whose state alone is "
    "kept. Likely causes: gradients that are changed after the replicas have summed them, an optimizer that "
    "steps by a replica's own numbers. What is meant to differ is named in exempt_from_comparison "
    "(docs/training.md, Replicas that differ)"
)
_TORN = (
    "the optimizers' states are spread over the replicas, and replicas {ranks} have different {names}."
    " A checkpoint has one state of each parameter, so a move would lose the others. Let exactly one replica "
    "keep a parameter's state, or all of them the same"
)
_OTHERS = (
    "replica {rank} has given the optimizers other parameters than replica 0, whose alone a checkpoint can "
    "have: {names}. Give them all parameters on each replica; an optimizer may still step a part of them"
)
_ORDER = (
    "replica {rank} has given the optimizers their parameters in another order than replica 0, from {names} "
    "on, and a checkpoint has the states in replica 0's: give them in the same order on each replica, as "
    "that of model.parameters(), not of a set"
)


class OptimizerStates:
    """The states of `optimizers`, whose parameters have names in `model`.

    `exempt` names parameters or modules whose states may differ. `on_spread` is called once on all replicas,
    with a reason against a regroup, where a state is spread.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        model: torch.nn.Module,
        *,
        exempt: Sequence[str],
        side_channel: SideChannel[Any],
        faults: TrainingFaults,
        on_spread: Callable[[str], None],
    ) -> None:
        self._optimizers, self._model, self._exempt = optimizers, model, tuple(exempt)
        self._side_channel, self._faults, self._on_spread = side_channel, faults, on_spread
        self._restored: dict[Path, int] = {}
        # On replica 0: what others own, until it is written.
        self._merged: dict[Path, Any] = {}
        self._is_spread, self._num_syncs = False, 0

    def begin_run(self) -> None:
        """Begin to compare anew, with other replicas, which all have the same states now."""
        self._num_syncs = 0
        self.restored()

    def restored(self) -> None:
        """Take note that the present states are those of all replicas."""
        # torch's own keep the whole state on each replica.
        if all(type(one).__module__.startswith("torch.optim.") for one in self._optimizers):
            return
        self._restored = _digests(self._leaves())

    def state_dicts(self) -> list[dict[str, Any]]:
        """Return the optimizers' states, on replica 0 with what `sync` has merged into them, once."""
        states = [dict(optimizer.state_dict()) for optimizer in self._optimizers]
        merged, self._merged = self._merged, {}
        names = self._names()
        for (index, name, *keys), value in merged.items():
            state = states[int(index)]
            state["state"] = _put(state["state"], [names[int(index)].index(str(name)), *keys], value)
        return states

    def sync(self) -> None:
        """Compare the states, and send to replica 0 what it lacks.

        Called on all replicas before each checkpoint: it does so at first and now and then; where they are
        spread, each time. Raises `UsageError` on all of them.
        """
        side, self._merged = self._side_channel, {}
        if side.world_size == 1 or not (self._is_spread or is_time_to_compare(self._num_syncs + 1)):
            self._num_syncs += 1
            return
        leaves = self._leaves()
        owned = {
            path: digest
            for path, digest in _digests(leaves).items()
            if digest != 0 and digest != self._restored.get(path)
        }
        names = self._names()
        everywhere = side.gather([list(owned), list(owned.values()), zlib.crc32(repr(names).encode())])
        if not any(paths for paths, _, _ in everywhere):
            return  # nothing is to be compared yet
        self._num_syncs += 1
        others = [rank for rank, (_, _, crc) in enumerate(everywhere) if crc != everywhere[0][2]]
        if others:
            self._refuse_others(others[0], names)
        owners: dict[Path, dict[int, int]] = {}
        for rank, (paths, digests, _) in enumerate(everywhere):
            for path, digest in zip(paths, digests, strict=True):
                owners.setdefault(path, {})[rank] = digest
        differing = [path for path, own in owners.items() if len(set(own.values())) > 1]
        torn = [path for path in differing if len(owners[path]) < side.world_size]
        if torn:
            ranks = sorted({rank for path in torn for rank in owners[path]})
            raise UsageError(_TORN.format(ranks=", ".join(map(str, ranks)), names=_listed(torn)))
        self._compare({path: leaves[path] for path in differing})
        self._merge(leaves, {path: min(own) for path, own in owners.items()})

    def _refuse_others(self, rank: int, names: list[list[str]]) -> None:
        """Raise `UsageError` where a replica's optimizers have other parameters, or in another order."""
        everywhere = self._side_channel.gather(names)
        own, first = (
            [(index, name) for index, part in enumerate(everywhere[one]) for name in part]
            for one in (rank, 0)
        )
        differing = sorted(set(own) ^ set(first))
        if differing:
            raise UsageError(_OTHERS.format(rank=rank, names=_listed(differing)))
        moved = next(other for one, other in zip(own, first, strict=True) if one != other)
        raise UsageError(_ORDER.format(rank=rank, names=_listed([moved])))

    def _compare(self, differing: Mapping[Path, Any]) -> None:
        """Report the largest difference from replica 0 that rounding does not explain, if any."""
        worst: list[Any] = [0.0, ""]
        for path, value in differing.items():
            mine = _as_tensor(value)
            theirs = self._side_channel.broadcast(mine)
            share = relative_difference(mine.cpu(), theirs)
            if share > max(worst[0], tolerance(mine.dtype), tolerance(theirs.dtype)):
                worst = [share, _listed([path])]
        if not differing:
            return
        each = [(share, rank, name) for rank, (share, name) in enumerate(self._side_channel.gather(worst))]
        share, rank, name = max(each)
        if share > 0.0:
            message = _DIFFERS.format(name=name, rank=rank, share=percentage(share))
            self._faults.report(JobWarning.REPLICAS_DIFFER, message)

    def _merge(self, leaves: Mapping[Path, Any], first_owner: Mapping[Path, int]) -> None:
        """Send to replica 0 the leaves that others own and it does not."""
        side = self._side_channel
        for rank in sorted(set(first_owner.values()) - {0}):
            paths = [path for path, owner in first_owner.items() if owner == rank]
            if side.rank == rank:
                send_state([to_plain(leaves[path], "state") for path in paths], to=[0], group=side.group)
            elif side.rank == 0:
                values = receive_state(src=rank, group=side.group)
                self._merged |= dict(zip(paths, values, strict=True))
            if not self._is_spread:
                self._is_spread = True
                self._on_spread(_SPREAD)

    def _names(self) -> list[list[str]]:
        """Return the names of each optimizer's parameters, in the order of its state."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        return [
            [
                names.get(id(parameter), f"its parameter {index}")
                for index, parameter in enumerate(p for group in one.param_groups for p in group["params"])
            ]
            for one in self._optimizers
        ]

    def _leaves(self) -> dict[Path, Any]:
        """Return the leaves of all optimizers that can be compared."""
        found: dict[Path, Any] = {}
        for number, (optimizer, names) in enumerate(zip(self._optimizers, self._names(), strict=True)):
            for index, state in optimizer.state_dict().get("state", {}).items():
                if isinstance(index, int) and index < len(names):
                    name = names[index]
                    if not any(is_within(name, own) for own in self._exempt):
                        _add_leaves(found, (number, name), state)
        return found


def _add_leaves(found: dict[Path, Any], path: Path, value: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str | int):
                _add_leaves(found, (*path, key), item)
    elif type(value) in (bool, int, float) or (
        type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    ):
        found[path] = value


def _put(container: Mapping[Any, Any], keys: Sequence[Any], value: Any) -> dict[Any, Any]:
    """Return a copy of nested mappings with one value in it; the optimizer's own stay as they are."""
    key, *rest = keys
    return {**container, key: _put(container.get(key, {}), rest, value) if rest else value}


def _as_tensor(value: Any) -> torch.Tensor:
    return value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


def _digests(leaves: Mapping[Path, Any]) -> dict[Path, int]:
    """Return the sum of each leaf's bits: 0 for zeros, and where there is nothing."""
    sums = bit_sums([_as_tensor(value) for value in leaves.values()]).tolist()
    return dict(zip(leaves, sums, strict=True))


def _listed(paths: Sequence[Path]) -> str:
    """Return parameters by name, with the first key of the state, as text."""
    return some_of([f"{path[1]!r}" + (f" ({path[2]})" if len(path) > 2 else "") for path in paths], 3)
