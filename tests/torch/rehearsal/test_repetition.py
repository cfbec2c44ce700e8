"""How runs of a rehearsal draw the same random numbers, and add up in another order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from pollux_slurm.agent.rehearsal_protocol import EventLog, RunPlan
from pollux_slurm.torch.rehearsal.planned_lack_of_memory import PlannedLackOfMemory
from pollux_slurm.torch.rehearsal.random_states import generators_in, read_states, set_states
from pollux_slurm.torch.rehearsal.repeatable_workers import WORKERS_DREW, RepeatableWorker
from pollux_slurm.torch.rehearsal.repetition import Repetition, ReversedExamples
from pollux_slurm.torch.rehearsal.step_log import StepLog, is_compared

pytestmark = pytest.mark.torch


class Augmenter:
    def __init__(self) -> None:
        self.generators = [np.random.default_rng(1), np.random.RandomState(2), random.Random(3)]
        self.by_name = {"torch": torch.Generator().manual_seed(4)}

    def draw(self) -> list[float]:
        new, old, python = self.generators
        own = float(torch.rand((), generator=self.by_name["torch"]))
        everyones = [float(torch.rand(())), float(np.random.rand()), random.random()]
        return [float(new.random()), float(old.rand()), python.random(), own, *everyones]


def test_that_random_numbers_go_on_from_states_that_were_kept() -> None:
    own = Augmenter()
    own.draw()
    states = json.loads(json.dumps(read_states([("own", own)])))
    expected = own.draw()
    another = Augmenter()
    assert another.draw() != expected
    set_states(states, [("own", another)])
    assert another.draw() == expected


def test_that_a_generator_of_the_system_has_no_state() -> None:
    assert generators_in([("all", [random.SystemRandom(), random.Random(1)])]).keys() == {"all[1]"}


class Noisy(Dataset[torch.Tensor]):
    """Each example is noise, where `draws`, from the worker's generator and from its own."""

    def __init__(self, draws: bool) -> None:
        self.draws, self.own = draws, np.random.default_rng(1)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(2) + self.own.random() if self.draws else torch.ones(2)


def batches(folder: Path, order: list[list[int]], *, draws: bool = True) -> dict[int, torch.Tensor]:
    torch.manual_seed(7)
    loader = DataLoader(
        Noisy(draws),
        batch_sampler=order,
        num_workers=1,
        worker_init_fn=RepeatableWorker(folder=folder, init=None),
    )
    loaded = [example for batch in loader for example in batch]
    return dict(zip([index for batch in order for index in batch], loaded, strict=True))


def test_that_a_workers_random_numbers_depend_on_the_example_alone(tmp_path: Path) -> None:
    one, two = batches(tmp_path, [[0, 1], [2, 3]]), batches(tmp_path, [[3], [2, 0]])
    assert len({tuple(example.tolist()) for example in one.values()}) == 4
    assert all(torch.equal(one[index], two[index]) for index in two)
    assert (tmp_path / WORKERS_DREW).exists()


def test_that_workers_that_draw_nothing_are_not_said_to(tmp_path: Path) -> None:
    batches(tmp_path, [[0, 1]], draws=False)
    assert not (tmp_path / WORKERS_DREW).exists()


def test_that_examples_are_reversed_before_they_become_a_batch() -> None:
    assert ReversedExamples(collate=tuple)([1, 2, 3]) == (3, 2, 1)
    assert ReversedExamples(collate=tuple)((1, 2, 3)) == (1, 2, 3)


class Events(EventLog):
    """Keeps events instead of writing them."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def write(self, kind: str, **fields: Any) -> None:
        self.written.append({"kind": kind, **fields})


class Source:
    def __init__(self) -> None:
        self._inner = DataLoader([0.0])  # type: ignore[arg-type]

    def _begin(self) -> float:
        return random.random() + float(torch.rand(()))


class Loader:
    def __init__(self, dataset: Any) -> None:
        self.dataset, self._source = dataset, Source()


def repetition(folder: Path, events: Events | None = None, *, repeats: Path | None = None) -> Repetition:
    folder.mkdir()
    plan = RunPlan(folder=folder, varies_batch=False, stop=None, repeats=repeats)
    return Repetition(plan, 0, events or Events())


def loop_over(repeated: Repetition, dataset: Any, place: list[Any]) -> None:
    loader: Any = Loader(dataset)
    repeated.begin_loop(loader, lambda: place)
    loader._source._begin()


def test_that_the_loop_of_the_checkpoint_goes_on_with_its_random_numbers(tmp_path: Path) -> None:
    before, own = repetition(tmp_path / "run-0"), Augmenter()
    loop_over(before, own, [0, "loader-0", 0])
    own.draw()
    before.note_checkpoint([0, "loader-0", 0])
    expected = own.draw()
    events, fresh = Events(), Augmenter()
    after = repetition(tmp_path / "run-1", events, repeats=tmp_path / "run-0")
    # An evaluation comes first.
    loop_over(after, Augmenter(), [0, "loader-1", 0])
    assert events.written == []
    loop_over(after, fresh, [0, "loader-0", 0])
    assert fresh.draw() == expected
    assert [event["kind"] for event in events.written] == ["random_restored"]


def test_that_the_begin_of_a_loop_draws_nothing_from_the_process(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    loop_over(repetition(tmp_path / "run-0"), None, [0, "loader-0", 0])
    assert torch.equal(torch.get_rng_state(), state)


def fails(forward: Callable[[], Any]) -> bool:
    try:
        forward()
    except torch.OutOfMemoryError:
        return True
    return False


def test_that_memory_runs_out_in_one_forward_pass_of_a_wrapped_model(tmp_path: Path) -> None:
    model, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    ones, events = torch.ones(1, 1), Events()
    planned = PlannedLackOfMemory(tmp_path, 0, lambda: [model], events)
    assert not fails(lambda: model(ones))
    planned.begin_micro_batch()
    assert not fails(lambda: other(ones))
    assert fails(lambda: model(ones))
    assert planned.is_done
    assert not fails(lambda: model(ones))
    # The process that is started after it.
    assert PlannedLackOfMemory(tmp_path, 0, lambda: [model], events).is_done


def test_that_a_forward_pass_after_the_micro_batch_does_not_fail(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    planned = PlannedLackOfMemory(tmp_path, 0, lambda: [model], Events())
    planned.begin_micro_batch()
    planned.end_micro_batch()
    assert not fails(lambda: model(torch.ones(1, 1)))
    assert not planned.is_done


def test_that_a_process_that_is_started_again_adds_to_the_events(tmp_path: Path) -> None:
    for generation in range(3):
        log = EventLog(tmp_path, 0, generation=0)
        log.write("start", number=generation)
        log._file.close()
    assert len((tmp_path / "events-0-0.jsonl").read_text().splitlines()) == 3


class Model:
    def __init__(self) -> None:
        self.name, self.module = "model-0", torch.nn.Linear(2, 1)
        self.optimizers = [torch.optim.AdamW(self.module.parameters(), lr=0.5, weight_decay=0.25)]


def test_that_each_step_has_its_rates_and_some_have_weights() -> None:
    model: Any = Model()
    events = Events()
    log = StepLog(lambda: [model], events)
    log.log(3)
    model.optimizers[0].param_groups[0]["lr"] = 0.125
    log.log(33)
    first, second = events.written
    assert list(first["rates"].values()) == [0.5, 0.25]
    assert list(second["rates"].values()) == [0.125, 0.25]
    assert (len(first["models"]["model-0"]), second["models"]) == (4, {})


def test_that_ever_fewer_steps_have_weights() -> None:
    assert all(is_compared(step) for step in range(1, 32))
    assert sum(is_compared(step) for step in range(1024, 2048)) == 16
