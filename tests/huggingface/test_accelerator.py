"""`PolluxAccelerator` in one process: the same training as accelerate's, and what it refuses."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin
from torch.utils.data import DataLoader, IterableDataset, Sampler, WeightedRandomSampler

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from pollux_slurm.huggingface import PolluxAccelerator
from pollux_slurm.huggingface.loaders import EvaluationLoader, TrainingLoader
from tests.torch.scripts import Numbered, make_model
from tests.torch.single_replica import Numbers, Slope, joined

pytestmark = pytest.mark.torch


def train(accelerator: Any, *, clip: float | None = None, num_epochs: int = 2) -> dict[str, Any]:
    model, optimizer = make_model("adam")
    # 64 examples are 4 whole batches of 16: accelerate divides the losses of a short one by 4 as well.
    loader = DataLoader(Numbered(64), batch_size=4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    rates, norms = [], []
    epochs = range(num_epochs) if type(accelerator) is Accelerator else pt.remaining_epochs_until(num_epochs)
    for _ in epochs:
        for inputs, targets, _ in loader:
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
                if clip is not None and accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), clip).item())
                if accelerator.sync_gradients:
                    rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    weights = accelerator.unwrap_model(model).state_dict()
    return {"weights": {key: value.clone() for key, value in weights.items()}, "rates": rates, "norms": norms}


def reset() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.mark.parametrize(("named", "precision"), [("no", "float32"), ("bf16", "bfloat16")])
def test_that_it_tells_the_precision_of_accelerate(named: str, precision: str) -> None:
    with joined() as session:
        train(PolluxAccelerator(cpu=True, mixed_precision=named), num_epochs=1)
        assert session.models.precision == precision
    reset()


def test_that_it_trains_as_accelerate_does_in_one_process() -> None:
    plain = train(Accelerator(cpu=True, gradient_accumulation_steps=4), clip=0.5)
    reset()
    with joined():
        ours = train(PolluxAccelerator(gradient_accumulation_steps=4), clip=0.5)
    assert len(plain["rates"]) == 8
    assert ours["rates"] == pytest.approx(plain["rates"])
    assert ours["norms"] == pytest.approx(plain["norms"], rel=1e-4)
    for name, weight in plain["weights"].items():
        torch.testing.assert_close(ours["weights"][name], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_steps", [1, 4])
@pytest.mark.parametrize("steps", ["by a count", "if sync_gradients", "in each micro-batch"])
def test_that_a_script_that_counts_micro_batches_itself_is_refused_before_its_first_step(
    steps: str, num_steps: int
) -> None:
    """Where a batch has as many parts as the script counts, it would step in time, with smaller batches."""
    with joined() as session:
        accelerator = PolluxAccelerator(gradient_accumulation_steps=num_steps)
        slope = Slope()
        optimizer = torch.optim.SGD(slope.parameters(), lr=1.0)
        loader = DataLoader(Numbers(16), batch_size=4)
        model, optimizer, loader = accelerator.prepare(slope, optimizer, loader)
        # As after an OutOfMemoryError.
        loader.autoscale_batch_size(loader.batch_size, (1, num_steps), gradient_accumulation=True)
        loader.fix_batch_size()
        with pytest.raises(UsageError, match="accumulate") if "count" in steps else nullcontext():
            for i, (inputs, _) in enumerate(loader):
                accelerator.backward((model(inputs) / inputs).mean())
                is_due = (i + 1) % 4 == 0 if "count" in steps else "each" in steps
                if is_due or ("sync" in steps and accelerator.sync_gradients):
                    optimizer.step()
                    optimizer.zero_grad()
        num_done = 0 if "count" in steps else 4 // num_steps
        assert session.num_steps == num_done
        assert slope.weight.item() == -num_done


def test_that_the_order_of_what_prepare_gets_makes_no_difference() -> None:
    for order in itertools.permutations(range(5)):
        reset()
        with joined():
            accelerator = PolluxAccelerator()
            model, optimizer = make_model("sgd")
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            loaders = [DataLoader(Numbered(8), batch_size=4), DataLoader(Numbered(6), batch_size=4)]
            given = [model, optimizer, scheduler, *loaders]
            prepared = accelerator.prepare(*(given[index] for index in order))
            model, optimizer, scheduler, *loaders = (prepared[order.index(index)] for index in range(5))
            assert isinstance(model, pt.AdaptiveDataParallel)
            # The first of the two is the training loader.
            assert isinstance(loaders[order.index(3) > order.index(4)], TrainingLoader)
            assert isinstance(loaders[order.index(3) < order.index(4)], EvaluationLoader)
            for inputs, targets, _ in loaders[order.index(3) > order.index(4)]:
                accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
                optimizer.step()
                scheduler.step()
            assert scheduler.get_last_lr() == [0.05 * 0.25]
            assert accelerator.prepare(model, optimizer) == (model, optimizer)


def test_that_scripts_that_divide_the_loaders_length_by_the_accumulation_steps_count_right() -> None:
    counts = []
    for accelerator_class, options in [(Accelerator, {"cpu": True}), (PolluxAccelerator, {})]:
        reset()
        with joined():
            accelerator = accelerator_class(gradient_accumulation_steps=4, **options)
            loader = accelerator.prepare(DataLoader(Numbered(70), batch_size=4))
            counts.append(math.ceil(len(loader) / 4))
            if accelerator_class is PolluxAccelerator:
                for _ in pt.remaining_epochs_until(1):
                    assert len(loader) == 4 * 4 + 2
    assert counts == [5, 5]


def test_that_a_late_scheduler_is_prepared_and_restored(tmp_path: Path) -> None:
    rates = []
    for num_epochs in (1, 2):
        reset()
        with joined(tmp_path):
            accelerator = PolluxAccelerator(gradient_accumulation_steps=2)
            model, optimizer, loader = accelerator.prepare(
                *make_model("sgd"), DataLoader(Numbered(16), batch_size=4)
            )
            scheduler = accelerator.prepare(
                torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
            )
            for _ in pt.remaining_epochs_until(num_epochs):
                for inputs, targets, _ in loader:
                    accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
                    if accelerator.sync_gradients:
                        rates.append(optimizer.param_groups[0]["lr"])
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
    assert rates == pytest.approx([0.05, 0.05 / 2, 0.05 / 3, 0.05 / 4])


class Counted:
    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def test_that_registered_objects_are_in_the_jobs_checkpoint_and_states_can_be_exported(
    tmp_path: Path,
) -> None:
    for expected in (0, 4):
        reset()
        with joined(tmp_path / "job"):
            accelerator, counted = PolluxAccelerator(), Counted()
            accelerator.register_for_checkpointing(counted)
            model, optimizer, loader = accelerator.prepare(
                *make_model("sgd"), DataLoader(Numbered(16), batch_size=4)
            )
            assert counted.count == expected
            for _ in pt.remaining_epochs_until(1):
                for inputs, targets, _ in loader:
                    accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
                    optimizer.step()
                    counted.count += 1
            accelerator.save_state(str(tmp_path / "export"))
            with pytest.raises(UsageError, match="the job's own checkpoint"):
                accelerator.load_state(str(tmp_path / "export"))
            with pytest.raises(UsageError, match="skip_first_batches"):
                accelerator.skip_first_batches(loader, 1)
            accelerator.end_training()
    assert (tmp_path / "export" / "model.safetensors").is_file()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (Numbered(22)[index] for index in range(22))


def test_that_evaluations_see_each_example_once_in_order() -> None:
    with joined():
        accelerator = PolluxAccelerator()
        accelerator.expects_training_loader = False
        own = [[3, 1], [2], [5, 7, 11, 13]]
        loaders = {
            "whole": DataLoader(Numbered(22), batch_size=4),
            "dropping": DataLoader(Numbered(22), batch_size=4, drop_last=True),
            "stream": DataLoader(Stream(), batch_size=4),
            "own batches": DataLoader(Numbered(22), batch_sampler=own),
        }
        seen = {}
        for name, loader in loaders.items():
            prepared = accelerator.prepare(loader)
            batches = [accelerator.gather_for_metrics(batch[2]).tolist() for batch in prepared]
            if name != "stream":
                assert len(prepared) == len(batches)
            # A loss repeated to the full batch, as transformers' Trainer does, counts for its own examples.
            counts = [len(accelerator.gather_for_metrics(torch.zeros(4))) for _ in prepared]
            assert counts == [len(batch) for batch in batches]
            ends = [accelerator.gradient_state.end_of_dataloader for _ in prepared]
            assert ends == [False] * (len(batches) - 1) + [True]
            assert not accelerator.gradient_state.in_dataloader
            words = [accelerator.gather_for_metrics(["a"] * len(batch[2])) for batch in prepared]
            assert [len(some) for some in words] == counts
            seen[name] = [index for batch in batches for index in batch]
    assert seen["whole"] == seen["stream"] == list(range(22))
    assert seen["dropping"] == list(range(20))
    assert seen["own batches"] == [3, 1, 2, 5, 7, 11, 13]


def test_that_within_a_training_loop_batches_of_a_loader_that_was_not_prepared_are_not_cut() -> None:
    with joined():
        reset()
        accelerator = PolluxAccelerator()
        training = accelerator.prepare(DataLoader(Numbers(8), batch_size=4))
        others = DataLoader(Numbers(22), batch_size=8)
        for _ in training:
            gathered = [len(accelerator.gather_for_metrics(batch[1])) for batch in others]
            words = [len(accelerator.gather_for_metrics(["a"] * len(batch[1]))) for batch in others]
            assert gathered == words == [8, 8, 6]


def test_that_samplers_seeds_and_sizes_of_torchs_loader_are_kept() -> None:
    with joined():

        def make(loader: Any, **options: Any) -> Any:
            reset()
            return PolluxAccelerator(**options).prepare(loader)

        def order(loader: Any) -> list[int]:
            return [index for batch in loader for index in batch[1].tolist()]

        plain = make(DataLoader(Numbers(8), batch_size=2))
        assert (plain.batch_size, order(plain)) == (2, list(range(8)))
        assert order(make(DataLoader(Numbers(8), batch_size=2, shuffle=True))) != list(range(8))
        seeded = [
            order(
                make(
                    DataLoader(
                        Numbers(50), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(seed)
                    )
                )
            )
            for seed in (1, 1, 2)
        ]
        assert seeded[0] == seeded[1] != seeded[2]
        assert sorted(seeded[0]) == list(range(50))
        weighted = WeightedRandomSampler([0.0, 1.0, 0.0], 6)
        assert order(make(DataLoader(Numbers(3), batch_size=2, sampler=weighted))) == [1] * 6
        lists = make(DataLoader(Numbers(8), batch_sampler=[[3, 1, 2], [4]]), global_batch_size=2)
        assert [batch[1].tolist() for batch in lists] == [[3, 1, 2], [4]]
        large = make(DataLoader(Numbers(8), batch_size=2), global_batch_size=6)
        assert (large.batch_size, [len(batch[1]) for batch in large]) == (6, [2, 2, 2, 2])
        growing = make(DataLoader(Numbers(8), batch_size=2), max_batch_size=8)
        assert (growing.limits.max_batch_size, growing.limits.max_atomic) == (8, 2)
        plugin = GradientAccumulationPlugin(num_steps=3)
        assert make(DataLoader(Numbers(8), batch_size=2), gradient_accumulation_plugin=plugin).batch_size == 6


class Part(Sampler[int]):
    """A sampler that has the names of a `DistributedSampler`."""

    num_replicas, rank = 1, 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_that_one_replica_is_told_once_of_a_sampler_by_rank(caplog: pytest.LogCaptureFixture) -> None:
    own = [DataLoader(Numbers(8), batch_size=2, sampler=Part()) for _ in ("training", "evaluation")]
    with joined():
        reset()
        training, evaluation = PolluxAccelerator().prepare(*own)
        assert [len(list(training)) for _ in range(2)] == [4, 4]
        told = [record.message for record in caplog.records if "the sampler Part has" in record.message]
        assert len(told) == 1
        assert [len(list(evaluation)) for _ in range(2)] == [4, 4]
        told = [record.message for record in caplog.records if "the sampler Part has" in record.message]
        assert len(told) == 2, "one line for each loader"


def refused_training(change: str) -> None:
    accelerator = PolluxAccelerator(gradient_accumulation_steps=2)
    model, optimizer = Slope(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = DataLoader(Numbers(8), batch_size=2)
    if change == "model alone":
        model = accelerator.prepare(model)
        accelerator.prepare(optimizer)
    elif change == "no optimizer":
        model, loader = accelerator.prepare(model, loader)
    elif change == "scheduler unknown":
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    elif change == "evaluation first":
        _, model, optimizer, loader = accelerator.prepare(
            DataLoader(Numbers(4), batch_size=2), model, optimizer, loader
        )
    elif change == "two models":
        other = Slope()
        optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1.0)
        accelerator.prepare(model, other, optimizer, loader)
    elif change == "wrapped":
        accelerator.prepare(pt.AdaptiveDataParallel(model, optimizer), loader)
    elif change == "steps":
        accelerator.gradient_accumulation_steps = 4
    for inputs, _ in loader:
        accelerator.backward(model(inputs).mean())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model alone", "one call of prepare"),
        ("no optimizer", "one call of prepare"),
        ("scheduler unknown", "accelerator.prepare\\(scheduler\\)"),
        ("evaluation first", "the first DataLoader"),
        ("two models", "another AdaptiveDataParallel"),
        ("wrapped", "AdaptiveDataParallel already"),
        ("steps", "give it to PolluxAccelerator"),
    ],
)
def test_that_what_would_train_wrong_is_refused(change: str, message: str) -> None:
    with joined(), pytest.raises(UsageError, match=message):
        refused_training(change)


@pytest.mark.parametrize(
    "options",
    [
        {"fsdp_plugin": object()},
        {"deepspeed_plugin": object()},
        {"parallelism_config": object()},
        {"kwargs_handlers": [DistributedDataParallelKwargs(comm_hook="fp16")]},
    ],
)
def test_that_what_splits_a_model_or_its_gradients_otherwise_is_refused(options: dict[str, Any]) -> None:
    with joined(), pytest.raises(UsageError):
        PolluxAccelerator(**options)


def test_that_another_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with joined() as session:
        monkeypatch.setattr(session, "world_size", 2)
        with pytest.raises(UsageError, match="1 processes and the job 2"):
            PolluxAccelerator()


def test_that_a_script_without_slurm_needs_no_more_than_the_accelerator() -> None:
    code = (
        "import torch; from torch.utils.data import DataLoader; "
        "from pollux_slurm.huggingface import PolluxAccelerator; a = PolluxAccelerator(); "
        "print(a.num_processes, torch.distributed.is_initialized())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "1 True\n"


def test_that_the_pages_lines_are_those_of_a_loop_that_runs() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "transformers.md").read_text(encoding="utf-8")
    (diff,) = [part.split("```")[0] for part in page.split("```diff\n")[1:] if "PolluxAccelerator" in part]
    lines = [line[1:] for line in diff.splitlines() if not line.startswith("-")]
    steps = (
        "accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))",
        "optimizer.step()",
        "scheduler.step()",
        "optimizer.zero_grad()",
    )
    code = "\n".join(lines).replace("...", "; ".join(steps))
    model, optimizer = make_model("sgd")
    names = {
        "torch": torch,
        "model": model,
        "optimizer": optimizer,
        "loader": DataLoader(torch.utils.data.TensorDataset(Numbered(8).inputs, Numbered(8).targets), 2),
        "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    }
    with joined():
        exec(code, names)
    assert names["scheduler"].get_last_lr() == [0.05 / 31]  # type: ignore[attr-defined]
