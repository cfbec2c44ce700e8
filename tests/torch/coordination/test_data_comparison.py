"""Replicas that read different data are refused; whatever else differs between them is not."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, Subset, random_split

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from pollux_slurm.torch.coordination.data_comparison import DataComparison
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.ranks import run_ranks, start
from tests.torch.single_replica import Numbers, Trainee

pytestmark = pytest.mark.torch

LENGTH = 24


class Stream(IterableDataset[Any]):
    """Calls a function for its examples, each time that it is read."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())


class OwnIterator(IterableDataset[int]):
    """Its own iterator, as litdata's: `iter` begins it again. A part of it by rank."""

    def __init__(self, rank: int, parts: int) -> None:
        self.first, self.parts = rank, parts

    def __iter__(self) -> OwnIterator:
        self.at = self.first - self.parts
        return self

    def __next__(self) -> int:
        self.at += self.parts
        if self.at >= LENGTH:
            raise StopIteration
        return self.at


class WithEpoch(Stream):
    """A stream that is shuffled anew in each epoch."""

    def __init__(self) -> None:
        super().__init__(lambda: random.Random(self.epoch).sample(range(LENGTH), LENGTH))
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@dataclass
class Record:
    """An example of a class of the user's own."""

    number: int
    decode: Callable[[], Any]


def by_rank(numbers: Any) -> Any:
    return list(numbers)[dist_rank() :: current_session().world_size]


def dist_rank() -> int:
    return current_session().rank


def hugging_face(*, splits: bool) -> Any:
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    stream = Dataset.from_dict({"x": list(range(LENGTH))}).to_iterable_dataset(num_shards=4)
    stream = stream.shuffle(seed=3, buffer_size=8)
    if not splits:
        return stream
    return split_dataset_by_node(stream, rank=dist_rank(), world_size=current_session().world_size)


def archives(*, splits: bool) -> Any:
    """Return what WebDataset reads: dicts with a key and the address of their archive."""
    shards = range(4)
    return [
        {"__key__": f"{shard}-{index}", "__url__": f"data/{shard}.tar", "txt": b"%d" % (shard + index)}
        for shard in (by_rank(shards) if splits else shards)
        for index in range(LENGTH // 4)
    ]


def augmented() -> Any:
    return [(torch.randn(3), index) for index in range(LENGTH)]


def augmented_by_rank() -> Any:
    generator = torch.Generator().manual_seed(7 + dist_rank())
    return [(torch.randn(3, generator=generator), index) for index in range(LENGTH)]


def with_reader(numbers: Any) -> Any:
    return [{"x": number, "rank": dist_rank()} for number in numbers]


def rounded_otherwise() -> Any:
    """Return images as another processor would compute them."""
    images = torch.rand(LENGTH, 3, 8, generator=torch.Generator().manual_seed(1))
    return list(images * (1 + dist_rank() * 2**-22))


def in_a_nodes_cache() -> Any:
    return [{"path": f"/tmp/node-{dist_rank()}/{index}", "value": float(index)} for index in range(LENGTH)]


REFUSED: dict[str, Callable[[], Any]] = {
    "numbers by rank": lambda: Stream(lambda: by_rank(range(LENGTH))),
    "split_dataset_by_node": lambda: hugging_face(splits=True),
    "split_by_node": lambda: Stream(lambda: archives(splits=True)),
    "its own iterator": lambda: OwnIterator(dist_rank(), current_session().world_size),
    "random examples of a part": lambda: Stream(
        lambda: [(torch.randn(3), label) for label in by_rank(range(LENGTH))]
    ),
    "images by rank": lambda: Stream(lambda: by_rank(rounded_otherwise())),
    "part with its reader": lambda: Stream(lambda: with_reader(by_rank(range(LENGTH)))),
    "other keys": lambda: Stream(lambda: [{f"x{dist_rank()}": 1} for _ in range(LENGTH)]),
    "a seed by rank": lambda: Stream(lambda: random.Random(dist_rank()).sample(range(LENGTH), LENGTH)),
    "lengths of streams": lambda: Stream(lambda: [object()] * (13 + dist_rank())),
    "subset by rank": lambda: Subset(Numbers(LENGTH), by_rank(range(LENGTH))),
    "subset of a subset": lambda: Subset(Subset(Numbers(30), range(LENGTH)), by_rank(range(LENGTH))),
    "lengths": lambda: Numbers(LENGTH - dist_rank()),
}
WARNED: dict[str, Callable[[], Any]] = {
    "random order": lambda: Stream(lambda: random.sample(range(LENGTH), LENGTH)),
    "random split": lambda: random_split(Numbers(LENGTH), [12, 12])[0],
    "augmented by rank": lambda: Stream(augmented_by_rank),
    "a note of the reader": lambda: Stream(lambda: with_reader(range(LENGTH))),
    "a cache by rank": lambda: Stream(
        lambda: [{"x": index, "path": f"cache/{dist_rank()}/{index}"} for index in range(LENGTH)]
    ),
}
ACCEPTED: dict[str, Callable[[], Any]] = {
    "numbers": lambda: Stream(lambda: range(LENGTH)),
    "short": lambda: Stream(lambda: range(1)),
    "Hugging Face": lambda: hugging_face(splits=False),
    "archives": lambda: Stream(lambda: archives(splits=False)),
    "its own iterator": lambda: OwnIterator(0, 1),
    "by epoch": WithEpoch,
    "random augmentation": lambda: Stream(augmented),
    "rounding": lambda: Stream(rounded_otherwise),
    "a node's paths": lambda: Stream(in_a_nodes_cache),
    "objects": lambda: Stream(lambda: [Record(index, lambda: None) for index in range(LENGTH)]),
    "functions": lambda: Stream(lambda: [lambda: None for _ in range(LENGTH)]),
    "fixed fraction": lambda: Subset(Numbers(LENGTH), range(LENGTH // 2)),
    "fixed split": lambda: random_split(
        Numbers(LENGTH), [12, 12], generator=torch.Generator().manual_seed(0)
    )[0],
}


def collate(examples: list[Any]) -> int:
    return len(examples)


# Read by a worker process; the others are read by one as well as without.
IN_WORKERS = {"numbers by rank", "its own iterator", "random order", "random augmentation", "objects"}


def read_all() -> dict[str, Any]:
    """Read two epochs of each dataset; return what was refused, what was logged, how many were read."""
    pt.init_process_group()
    rank = dist_rank()
    random.seed(rank)
    torch.manual_seed(rank)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("pollux_slurm").addHandler(handler)
    results = {}
    for kind, datasets in {"refused": REFUSED, "warned": WARNED, "accepted": ACCEPTED}.items():
        for name, make in datasets.items():
            options: dict[str, Any] = {"collate_fn": collate}
            if name in IN_WORKERS:
                options |= {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True}
            loader = pt.AdaptiveDataLoader(make(), batch_size=6, name=f"{kind} {name}", **options)
            lines.clear()
            error, number = "", 0
            try:
                for _ in range(2):
                    # As a framework does that owns the loop; it gets None after each step.
                    batches = loader if name in IN_WORKERS else loader.iterate_steps()
                    number += sum(0 if loader.is_padding else size or 0 for size in batches)
            except UsageError as found:
                error = str(found)
            results[f"{kind} {name}"] = [error, list(lines), number]
    return results


def test_that_replicas_that_read_different_data_are_refused_and_others_not(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    first, second = run_ranks(tmp_path, 2, read_all)
    for name in REFUSED:
        for result in (first, second):
            error, _, number = result[f"refused {name}"]
            assert "differ" in error, name
            assert "leave out what divides by rank" in error, name
            assert number <= LENGTH // 2, "at the first step, or at the end of the first epoch"
    for name in WARNED:
        (error, lines, _), (other, others, _) = first[f"warned {name}"], second[f"warned {name}"]
        assert (error, other, others) == ("", "", [])
        expected = "random" if name.startswith("random") else "seem to read the same examples"
        assert [expected in line for line in lines] == [True], name
    for name in ACCEPTED:
        length = {"short": 1, "fixed fraction": 12, "fixed split": 12}.get(name, LENGTH)
        (error, lines, one), (_, _, other) = first[f"accepted {name}"], second[f"accepted {name}"]
        assert (error, lines, one + other) == ("", [], 2 * length), name


class LateGroup:
    """Other replicas that come when `told` is set."""

    rank, world_size = 0, 2

    def __init__(self, told: threading.Event) -> None:
        self.told = told

    def gather(self, value: Any) -> list[Any]:
        assert self.told.wait(60)
        return [value, value]


def test_that_a_replica_whose_stream_ends_first_says_for_what_it_waits() -> None:
    told, lines = threading.Event(), []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            told.set()

    handler, logger = Handler(), logging.getLogger("pollux_slurm")
    logger.addHandler(handler)
    try:
        comparison = DataComparison("'loader-0'", LateGroup(told), accepts=False)  # type: ignore[arg-type]
        comparison.compare_counts(12, tell_after_s=0.0)
    finally:
        logger.removeHandler(handler)
    assert [line for line in lines if "has ended on this replica, after 12 examples" in line]


def accept() -> list[Any]:
    pt.init_process_group()
    loader = pt.AdaptiveDataLoader(REFUSED["numbers by rank"](), batch_size=6)
    return [number for batch in loader for number in batch.tolist()]


def test_that_who_means_it_may_divide_a_stream(tmp_path: Path) -> None:
    first, second = run_ranks(tmp_path, 2, accept, env={"POLLUX_ACCEPT_CHANGES": "1"})
    assert len(first) + len(second) == 12


def stop_in_the_middle(directory: str) -> None:
    pt.init_process_group(checkpoint_dir=directory)
    trainee = Trainee()
    stream = Stream(lambda: by_rank([(torch.ones(1), index) for index in range(LENGTH)]))
    loader = pt.AdaptiveDataLoader(stream, batch_size=6)
    for _ in pt.remaining_epochs_until(1):
        for number, (inputs, _) in enumerate(loader, 1):
            trainee.step(inputs)
            if number == 2:
                os.kill(os.getpid(), signal.SIGTERM)


def test_that_a_part_of_a_stream_that_ends_where_the_job_goes_on_is_found(tmp_path: Path) -> None:
    directory = str(tmp_path / "job")
    assert start(tmp_path, 1, stop_in_the_middle, directory).wait() == [143]
    run = start(tmp_path, 2, stop_in_the_middle, directory, restart_count=1)
    assert 0 not in run.wait()
    assert "the replicas read different examples" in run.output()


def look_on_rank_0() -> int:
    """Look at a batch on one replica alone, then train on all; a validation within is replica 0's, too."""
    pt.init_process_group()
    loader = pt.AdaptiveDataLoader(Stream(lambda: range(LENGTH)), batch_size=6)
    other = pt.AdaptiveDataLoader(Stream(lambda: range(LENGTH)), batch_size=6)
    if os.environ["RANK"] == "0":
        next(iter(loader))
    number = 0
    for batch in loader:
        number += len(batch)
        if os.environ["RANK"] == "0":
            list(other)
    return number


def test_that_a_replica_may_look_at_a_batch_alone(tmp_path: Path) -> None:
    assert sum(run_ranks(tmp_path, 2, look_on_rank_0)) == LENGTH
