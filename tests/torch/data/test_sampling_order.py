"""The user's own samplers: their order, the same on every replica and after every restart."""

from __future__ import annotations

import io
import os
import random
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, Sampler, WeightedRandomSampler

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.checkpoint.given_values import GivenValues
from pollux_slurm.torch.coordination.plain_data import to_plain
from pollux_slurm.torch.data.batch_sources import MapStyleSource
from pollux_slurm.torch.data.loader_position import LoaderPosition
from pollux_slurm.torch.data.sampling_order import SamplerOrder
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.data.test_iterable_share import Stream
from tests.torch.ranks import start
from tests.torch.scripts import Seen
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch


class Ranges(Sampler[list[int]]):
    """Batches of differing sizes in random order, drawn from every kind of generator."""

    batch_size = 4

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        left = torch.randperm(self.length).tolist()
        while left:
            size = random.randint(0, 7)
            yield left[:size]
            left = left[size:]


def new_position(length: int) -> LoaderPosition:
    values = GivenValues(num_replicas=1, accepts=False, logs=True)
    return LoaderPosition("loader", length=length, num_sampled=None, batch_size=1, given=values)


def samplers_of(length: int) -> list[SamplerOrder]:
    generator = torch.Generator()
    generator.manual_seed(3)
    return [
        SamplerOrder(RandomSampler(Numbers(length), generator=generator), is_batches=False),
        SamplerOrder(WeightedRandomSampler([1.0] * length, length + 3), is_batches=False),
        SamplerOrder(Ranges(length), is_batches=True),
    ]


@given(data=st.data(), length=st.integers(1, 50), kind=st.integers(0, 2))
@settings(max_examples=80)
def test_that_a_sampler_of_the_users_own_is_followed_exactly_over_any_sequence_of_sizes(
    data: st.DataObject, length: int, kind: int
) -> None:
    epoch = data.draw(st.integers(0, 3))
    expected = samplers_of(length)[kind].draw(seed=1, epoch=epoch, loop=0)
    position = new_position(length)
    visited: list[int] = []
    sizes = st.tuples(st.integers(1, 5), st.integers(1, 12), st.none() | st.integers(1, 3), st.integers(0, 4))
    runs: list[tuple[int, int, int | None, int]] = data.draw(st.lists(sizes, max_size=4))
    for replicas, batch, largest, num_steps in [*runs, (2, 5, None, length + 3)]:
        # A new run, which has the checkpoint only.
        saved = torch.load(saved_bytes(position.state_dict()), weights_only=True)
        position = new_position(length)
        position.load_state_dict(saved)
        loop = position.begin_loop(epoch)
        assert loop is not None
        order = loop.order
        if order is None:
            order = samplers_of(length)[kind].draw(seed=1, epoch=epoch, loop=0)
        position.keep_order(loop, order)
        choice = BatchChoice(
            global_batch_size=batch, atomic_batch_size=-(-batch // replicas), accumulation_steps=0
        )
        feeds = [
            MapStyleSource(
                Numbers(length),
                drop_last=False,
                options={"collate_fn": lambda examples: [index for _, index in examples]},
            ).steps(order, loop.start, choice, largest=largest, num_replicas=replicas, rank=rank)
            for rank in range(replicas)
        ]
        for steps in islice(zip(*feeds, strict=True), num_steps):
            for step, batches in steps:
                if order.ends is not None:
                    assert step.end in order.ends.tolist()
                for plan in step.micro_batches:
                    got = next(batches)
                    assert largest is None or order.ends is None or len(got) <= largest
                    visited += [] if plan.is_padding else got
            position.advance(loop, steps[0][0].end)
    assert sorted(visited) == sorted(expected.indices.tolist())


def follow(directory: str, stop_after: int | None) -> dict[str, list[int]]:
    """Train with a sampler that each rank would draw differently, then on an iterable dataset; return all."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    session, seen, num_steps = current_session(), Seen(), 0
    torch.manual_seed(session.rank)
    own = np.random.default_rng()

    class Drawn(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(own.permutation(21).tolist())

    trainee = Trainee()
    drawn = pt.AdaptiveDataLoader(Numbers(21), batch_size=4, sampler=Drawn())
    stream = pt.AdaptiveDataLoader(Stream(21), batch_size=4)
    for epoch in pt.remaining_epochs_until(2):
        for name, loader in (("drawn", drawn), ("stream", stream)):
            for batch in loader:
                indices = batch[1] if name == "drawn" else batch
                trainee.step(indices.float())
                if not loader.is_padding:
                    seen.local.setdefault(f"{name}-{epoch}", []).extend(indices.tolist())
                num_steps += 1
                if num_steps == stop_after:
                    os.kill(os.getpid(), signal.SIGTERM)
    seen.sync()
    return seen.steps


def test_that_replicas_follow_one_order_over_stops_and_other_sizes(tmp_path: Path) -> None:
    for restart, (replicas, stop_after) in enumerate([(2, 3), (3, 5), (1, 6)]):
        run = start(tmp_path, replicas, follow, str(tmp_path / "job"), stop_after, restart_count=restart)
        assert run.wait() == [143] * replicas, run.output()
    for seen in start(tmp_path, 2, follow, str(tmp_path / "job"), None, restart_count=3).succeed():
        assert {name: sorted(indices) for name, indices in seen.items()} == {
            "drawn-0": list(range(21)),
            "stream-0": list(range(21)),
            "drawn-1": list(range(21)),
            "stream-1": list(range(22)),
        }


def saved_bytes(value: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(to_plain(value, "test"), buffer)
    buffer.seek(0)
    return buffer


def test_that_drawing_an_order_leaves_the_users_generators_alone_and_follows_their_seed() -> None:
    torch.manual_seed(11)
    random.seed(11)
    before = torch.get_rng_state(), random.getstate()
    first = [user.draw(seed=0, epoch=0, loop=0).indices.tolist() for user in samplers_of(30)]
    again = [user.draw(seed=0, epoch=0, loop=0).indices.tolist() for user in samplers_of(30)]
    other = [user.draw(seed=0, epoch=1, loop=0).indices.tolist() for user in samplers_of(30)]
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    generator = torch.Generator()
    generator.manual_seed(4)
    reseeded = SamplerOrder(RandomSampler(Numbers(30), generator=generator), is_batches=False)
    assert reseeded.draw(seed=0, epoch=0, loop=0).indices.tolist() != first[0]


class Part(Sampler[int]):
    """The indices of one of several replicas, as many libraries' samplers have them."""

    def __init__(self, num_replicas: int, rank: int) -> None:
        self.num_replicas, self.rank = num_replicas, rank

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, 8, self.num_replicas))


def test_that_a_job_on_one_replica_is_told_of_a_sampler_that_is_refused_on_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with joined():
        pt.AdaptiveDataLoader(Numbers(8), batch_size=2, sampler=RandomSampler(Numbers(8)))
        # As on any number of replicas.
        SamplerOrder(Part(1, 0), is_batches=False)
        assert not caplog.records
        assert len(list(pt.AdaptiveDataLoader(Numbers(8), batch_size=2, sampler=Part(1, 0)))) == 4
    assert ["the sampler Part has num_replicas" in record.message for record in caplog.records] == [True]
    with joined(), pytest.raises(UsageError, match="leave Part, which divides them by rank, out"):
        pt.AdaptiveDataLoader(Numbers(8), batch_size=2, sampler=Part(2, 0))
