"""A training with its membership in the store: members meet at a port, and regroup once it is known."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import pollux_slurm.torch as pt
from pollux_slurm.launch.node.rendezvous import new_secret
from pollux_slurm.store.access.opening import unchecked_database
from pollux_slurm.store.access.url import parse_store_url
from pollux_slurm.store.contract.interface import GenerationMember, GenerationState, Store
from tests.store.builders import at, observation, registration, token_of
from tests.torch import ranks
from tests.waiting import wait_until

NUM_SAMPLES = 40
State = GenerationState


def train(directory: str, until: int | None, num_epochs: int) -> None:
    """Train until generation `until` has begun, with a fixed batch; write each epoch's loss and samples."""
    pt.init_process_group(
        in_place=True, checkpoint_dir=f"{directory}/checkpoints", checkpoint_interval_s=None
    )
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model = pt.AdaptiveDataParallel(model, optimizer)
    x = torch.randn(NUM_SAMPLES, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True), torch.arange(NUM_SAMPLES))
    loader = pt.AdaptiveDataLoader(data, batch_size=8, shuffle=True)
    sums = pt.Accumulator()
    regroups: list[int] = []
    pt.on_regroup(lambda rank, world_size: regroups.append(world_size))
    before = int(os.environ.get("POLLUX_JOINS", "1")) - 1

    is_over = False
    for epoch in pt.remaining_epochs_until(num_epochs):
        for features, targets, numbers in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(features), targets)
            loss.backward()
            optimizer.step()
            sums["loss"] += loss.item() * len(features)
            for number in numbers.tolist():
                sums[f"sample {number}"] += 1
            # In a step of the last generation, which is reported with it.
            is_over = until is not None and before + len(regroups) >= until
            if until is not None and not is_over:
                time.sleep(0.02)
            while Path(directory, "hold").exists():
                time.sleep(0.02)
        with sums.synchronized():
            if torch.distributed.get_rank() == 0:
                seen = [sums[f"sample {number}"] for number in range(NUM_SAMPLES)]
                line = {"epoch": epoch, "loss": sums["loss"], "seen": sorted(set(seen))}
                with Path(directory, "epochs").open("a") as file:
                    file.write(json.dumps(line) + "\n")
            sums.clear()
        if is_over:
            break


class Job:
    """Job 1 of a store, and the processes that this test starts and plans for it, as the daemon will."""

    def __init__(self, store: Store, url: str, directory: Path, until: int) -> None:
        self.store, self.directory, self._until = store, directory, until
        store.jobs.register([registration(1)], at=at(0))
        store.jobs.observe([observation(1, gpus={"n0": 1, "n1": 1})], at=at(1))
        token = directory / "token"
        token.write_text(token_of(1))
        token.chmod(0o600)
        self._environ = {
            "POLLUX_MEMBERSHIP": "store",
            "POLLUX_ADDRESS": "127.0.0.1",
            "POLLUX_TOKEN_FILE": str(token),
            "POLLUX_STORE_URL": url,
            "POLLUX_AGENT_POLL_INTERVAL_S": "0.1",
            "POLLUX_RUN_SECRET": new_secret(),
        }
        self.runs: dict[str, ranks.Run] = {}

    def start(self, member: str, **environ: str) -> None:
        """Start a process: a first one, or a newcomer."""
        self.runs[member] = ranks.start(
            self.directory,
            1,
            train,
            str(self.directory),
            self._until,
            10_000,
            env={**self._environ, "POLLUX_MEMBER": member, **environ},
        )

    def join(self, member: str, *others: str) -> None:
        """Plan that `member` joins `others`, and start it."""
        number = self.plan(*others, newcomers=(member,))
        self.start(
            member,
            POLLUX_JOINS=str(number),
            RANK=str(len(others)),
            WORLD_SIZE=str(len(others) + 1),
            POLLUX_GPUS_PER_NODE=",".join("1" * (len(others) + 1)),
        )

    def plan(self, *members: str, newcomers: tuple[str, ...] = ()) -> int:
        """Plan a generation, each member on a node of its own; return its number."""
        planned = [GenerationMember(id=one, node_name=f"node-{one}", is_ready=True) for one in members]
        planned += [GenerationMember(id=one, node_name=f"node-{one}") for one in newcomers]
        return self.store.generations.plan("1", planned, restart_count=0, at=at(2)).number

    def state(self) -> State:
        return self.store.generations.of_job("1")[-1].state

    def await_state(self, state: State) -> None:
        wait_until(lambda: self.state() is state, timeout_s=120, what=f"a generation that is {state.value}")

    def epochs(self) -> list[dict[str, Any]]:
        file = self.directory / "epochs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def output(self) -> str:
        return "\n".join(run.output() for run in self.runs.values())


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Keep everybody from writing into a store in SQLite."""
    database = unchecked_database(parse_store_url(url), create=False)
    with database.write():
        yield
    database.close()


def assert_exact(job: Job) -> None:
    """Assert that each epoch used each sample once, and that its loss is that of an unmoved training."""
    epochs = job.epochs()
    assert [epoch["epoch"] for epoch in epochs] == list(range(len(epochs)))
    assert all(epoch["seen"] == [1] for epoch in epochs)
    alone = job.directory / "alone"
    alone.mkdir()
    ranks.run_ranks(alone, 1, train, str(alone), None, len(epochs))
    unmoved = [json.loads(line)["loss"] for line in (alone / "epochs").read_text().splitlines()]
    assert [epoch["loss"] for epoch in epochs] == pytest.approx(unmoved, rel=1e-4)


@pytest.mark.full
def test_that_a_training_moves_to_another_node_and_back_to_one_replica(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    """From a, to a and b, to b alone: rank 0 leaves, and b opens the port for nobody else."""
    job = Job(store, store_url, tmp_path, until=3)
    job.start("a")
    job.join("b", "a")
    job.await_state(State.REGROUPED)
    first = store.generations.of_job("1")[0]
    assert first.meeting is not None
    assert first.meeting.startswith("127.0.0.1:")
    job.join("c", "b")
    job.await_state(State.REGROUPED)
    assert job.runs["a"].wait() == [0], "it has left"
    job.plan("c")
    job.await_state(State.REGROUPED)
    assert job.runs["b"].wait() == [0]
    assert job.runs["c"].wait() == [0], job.output()
    assert_exact(job)


def test_that_training_goes_on_while_the_commit_is_not_answered(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    job = Job(store, store_url, tmp_path, until=1)
    (tmp_path / "hold").touch()
    job.start("a")
    job.join("b", "a")
    wait_until(lambda: store.generations.of_job("1")[0].is_ready, timeout_s=120, what="b")
    with locked(store_url):
        (tmp_path / "hold").unlink()
        wait_until(lambda: "go on as they are" in job.output(), timeout_s=120, what="a's waiting for nothing")
        before = len(job.epochs())
        wait_until(lambda: len(job.epochs()) > before + 2, timeout_s=120, what="epochs meanwhile")
        assert job.state() is State.PLANNED
    job.await_state(State.REGROUPED)
    assert [run.wait() for run in job.runs.values()] == [[0], [0]], job.output()
    assert_exact(job)
