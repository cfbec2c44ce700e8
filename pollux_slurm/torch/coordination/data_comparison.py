"""Compare what the replicas read: all read the same data, of which the loader gives each its share.

A dataset that divides itself by rank would be divided twice, and most of its examples would be lost.
"""

from __future__ import annotations

import hashlib
import logging
import math
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Subset

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.coordination.side_channel import SideChannel

_LOG = logging.getLogger(__name__)

# Fields of examples: see `FieldDigests`.
_Fields = Mapping[str, Sequence[Any]]

# Of sums of floats, relative and absolute.
_TOLERANCE = 1e-4, 1e-6

_CURE = (
    "The loader shares the examples out itself, so each replica must read all of them in one order: leave "
    "out what divides by rank (split_dataset_by_node, split_by_node, shard, Subset by rank). See 'Data' in "
    "docs/training.md"
)
_RANDOM_STREAM = (
    "the order of the stream of {name} is random: it differs on each replica, and each time that it is read. "
    "So an epoch uses some examples twice and others not at all. Whether it divides itself by rank, which "
    "would lose more of them, cannot be told. Shuffle by a generator that is seeded in set_epoch(epoch); see "
    "'Data' in docs/training.md"
)
_OTHER_FIELDS = (
    "the replicas read other values of field {divided} from the stream of {name}, and the same of field "
    "{ordered}. So they seem to read the same examples, as they must, and differ in an augmentation, a path "
    "or a rank. Where the stream divides itself by rank all the same, most examples are lost: see 'Data' in "
    "docs/training.md"
)
_RANDOM_SUBSET = (
    "the replicas' datasets of {name} are different random parts: examples that one replica holds back for "
    "its validation are others' training data. Give random_split a generator with a fixed seed, "
    "generator=torch.Generator().manual_seed(0)"
)
_WAITS = (
    "the stream of {name} has ended on this replica, after {number} examples, and those of other replicas "
    "have not. Where this goes on they differ in length, and the job hangs: see 'Data' in docs/training.md"
)


class DataComparison:
    """Compares the data of one loader over the replicas. Each method is called on all of them alike.

    `accepts` makes a warning of what is an error otherwise.
    """

    def __init__(self, name: str, side_channel: SideChannel[Any], *, accepts: bool) -> None:
        self._name, self._side_channel, self._accepts = name, side_channel, accepts
        self._compared_in: int | None = None
        self._is_random = False

    def is_due(self, run_number: int) -> bool:
        """Return, once for each run with several replicas, that it is time to compare."""
        is_due = self._side_channel.world_size > 1 and self._compared_in != run_number
        self._compared_in = run_number
        return is_due

    def compare_streams(self, digests: _Fields, read_again: Callable[[], _Fields]) -> bool:
        """Compare the digests of what each replica has read first. Raises `UsageError` where they differ.

        Where they do, `read_again` returns those of the same stream, opened once more: what differs then,
        too, is random. A field that is the same on all replicas shows that they read the same examples, and
        makes a warning of the others. Returns whether the stream was opened.
        """
        gathered = self._side_channel.gather(dict(digests))
        if all(_are_same(gathered[0], other) for other in gathered):
            return False
        again = self._side_channel.gather(dict(read_again()))
        divided, ordered = _compare(gathered, again)
        fields = ", ".join(name for name in divided if name)
        if divided and ordered:
            shown = ", ".join(ordered)
            self._warn(_OTHER_FIELDS.format(name=self._name, divided=fields, ordered=shown))
        elif divided:
            where = f" (field {fields})" if fields else ""
            self._refuse(
                f"the replicas read different examples from the stream of {self._name}{where}. {_CURE}"
            )
        elif not ordered:
            self._is_random = True
            self._warn(_RANDOM_STREAM.format(name=self._name))
        return True

    def compare_counts(self, number: int, *, tell_after_s: float = 60.0) -> None:
        """Compare how many examples each replica's stream had. Raises `UsageError` where they differ.

        Where the other replicas are not there after `tell_after_s`, a line in the log says why that may be.
        """
        if self._side_channel.world_size == 1:
            return
        # A replica whose stream is longer by a step waits for this one's gradients meanwhile, for ever.
        timer = threading.Timer(tell_after_s, _LOG.warning, (_WAITS.format(name=self._name, number=number),))
        timer.daemon = True
        timer.start()
        try:
            counts = self._side_channel.gather(number)
        finally:
            timer.cancel()
        if min(counts) < max(counts):
            numbers = f"{min(counts)} to {max(counts)}"
            text = f"the replicas' streams of {self._name} differ: they have {numbers} examples. {_CURE}"
            if self._is_random:
                self._warn(text)
            else:
                self._refuse(text)

    def compare_datasets(self, dataset: Any) -> None:
        """Compare the length of map-style datasets, and the indices of a `Subset`. Raises `UsageError`.

        Other examples are not looked at: that may open files, or draw random numbers.
        """
        indices = _indices(dataset)
        digest = None if indices is None else hashlib.sha256(indices.numpy().tobytes()).hexdigest()[:16]
        gathered = self._side_channel.gather([len(dataset), digest])
        if all(other == gathered[0] for other in gathered):
            return
        lengths = [length for length, _ in gathered]
        if None in (digest for _, digest in gathered) or not self._overlap(indices):
            self._refuse(
                f"the replicas have different datasets for {self._name}, of {min(lengths)} to {max(lengths)} "
                f"examples. {_CURE}"
            )
        else:
            self._warn(_RANDOM_SUBSET.format(name=self._name))

    def _overlap(self, indices: torch.Tensor | None) -> bool:
        """Return whether some other replica's subset has examples of replica 0's."""
        assert indices is not None
        first = self._side_channel.broadcast(indices)
        shares = self._side_channel.gather(bool(torch.isin(indices, first).any()))
        return any(shares[1:])

    def _refuse(self, text: str) -> None:
        if not self._accepts:
            raise UsageError(f"{text}. Where that is meant, start with POLLUX_ACCEPT_CHANGES=1")
        self._warn(text)

    def _warn(self, text: str) -> None:
        if self._side_channel.rank == 0:
            _LOG.warning(text)


def _compare(first: Sequence[_Fields], again: Sequence[_Fields]) -> tuple[list[str], list[str]]:
    """Return the fields that differ over the replicas and not over time, and those that show the order.

    A field shows it where it is the same in all, and differs over the examples.
    """
    names = list(dict.fromkeys(name for fields in first for name in fields))
    kept = [
        name
        for name in names
        if all(_is_same(name, one, other) for one, other in zip(first, again, strict=True))
    ]
    divided = [name for name in kept if not all(_is_same(name, first[0], fields) for fields in first)]
    return divided, [name for name in kept if name not in divided and first[0][name][2]]


def _are_same(one: _Fields, other: _Fields) -> bool:
    return all(_is_same(name, one, other) for name in {*one, *other})


def _is_same(name: str, one: _Fields, other: _Fields) -> bool:
    """Return whether a field is the same in both, up to rounding, or in neither."""
    if name not in one or name not in other:
        return name not in one and name not in other
    (digest, sums, _), (other_digest, other_sums, _) = one[name], other[name]
    relative, absolute = _TOLERANCE
    return digest == other_digest and all(
        math.isclose(mine, theirs, rel_tol=relative, abs_tol=absolute)
        for mine, theirs in zip(sums, other_sums, strict=True)
    )


def _indices(dataset: Any) -> torch.Tensor | None:
    """Return the indices that a `Subset` (of a `Subset`) has of the dataset below; None for others."""
    found: list[int] | None = None
    try:
        for subset in _subsets(dataset):
            own = subset.indices
            found = [operator.index(own[place]) for place in (range(len(own)) if found is None else found)]
    except TypeError:
        return None
    return None if found is None else torch.tensor(found, dtype=torch.int64)


def _subsets(dataset: Any) -> Iterator[Any]:
    while isinstance(dataset, Subset):
        yield dataset
        dataset = dataset.dataset
