"""The library in plain scripts: compiled models, mixed precision, optimizers, writers, environment."""

from __future__ import annotations

import copy
import functools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

import pollux_slurm.torch as pt
from pollux_slurm.torch import env
from tests.torch.scripts import Numbered
from tests.torch.single_replica import Numbers, Slope, Trainee, joined

pytestmark = pytest.mark.torch

BATCH = 12


def network() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def optimizer_of(kind: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    return {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=0.02),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1),
    }[kind]()


def train_plain(kind: str, *, amp: bool, clip: float | None) -> torch.nn.Module:
    """The same training as plain PyTorch writes it, on whole batches."""
    model, dataset = network(), Numbered()
    optimizer = optimizer_of(kind, model)
    for _ in range(2):
        for start in range(0, len(dataset), BATCH):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
                outputs = model(dataset.inputs[start : start + BATCH])
            mse_loss(outputs.float(), dataset.targets[start : start + BATCH]).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return model


def train_adaptive(
    kind: str, *, amp: bool, clip: float | None, largest: int, backend: str | None
) -> torch.nn.Module:
    model = network()
    with joined():
        optimizer = optimizer_of(kind, model)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=amp)
        wrapped: Any = model if backend is None else torch.compile(model, backend=backend)
        parallel = pt.AdaptiveDataParallel(wrapped, optimizer, mp_scaler=scaler)
        loader = pt.AdaptiveDataLoader(Numbered(), batch_size=BATCH)
        loader.autoscale_batch_size(BATCH, (1, largest), gradient_accumulation=True)
        for _ in pt.remaining_epochs_until(2):
            for inputs, targets, _ in loader:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
                    outputs = parallel(inputs)
                scaler.scale(mse_loss(outputs.float(), targets)).backward()
                if clip is not None:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(parallel.parameters(), clip)
                scaler.step(optimizer)
                scaler.update()
    return model


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize(
    ("amp", "clip", "largest", "backend"),
    [
        (False, None, BATCH, "eager"),
        (False, 0.5, 5, "aot_eager"),
        (True, None, BATCH, None),
        (True, 0.5, 5, None),
    ],
)
def test_that_training_equals_plain_pytorch(
    kind: str, amp: bool, clip: float | None, largest: int, backend: str | None
) -> None:
    expected = train_plain(kind, amp=amp, clip=clip)
    found = train_adaptive(kind, amp=amp, clip=clip, largest=largest, backend=backend)
    # Micro-batches of 4 sum gradients that bfloat16 has rounded to 8 bits each.
    tolerance = 1e-4 if not amp else 2e-2
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=tolerance, atol=tolerance)
    moved = copy.deepcopy(network().state_dict())
    assert any(not torch.allclose(found.state_dict()[name], moved[name], atol=0.05) for name in moved)


def test_that_compiled_and_plain_models_resume_each_other(tmp_path: Path) -> None:
    weights: list[float] = []
    for compiles in (True, False, True):
        with joined(tmp_path):
            model = Slope()
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            wrapped: Any = torch.compile(model, backend="eager") if compiles else model
            parallel = pt.AdaptiveDataParallel(wrapped, optimizer)
            weights.append(model.weight.item())
            loader = pt.AdaptiveDataLoader(Numbers(2), batch_size=2)
            for _ in pt.remaining_epochs_until(len(weights)):
                for inputs, _ in loader:
                    optimizer.zero_grad()
                    parallel(inputs).mean().backward()
                    optimizer.step()
    assert weights == [0.0, -1.5, -3.0]


class Writer:
    """A writer with TensorBoard's interface, which is not installed here."""

    def __init__(self) -> None:
        self.written: dict[str, tuple[float, int]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.written[tag] = (scalar_value, global_step)


def test_that_a_tensorboard_writer_gets_batch_and_measurements() -> None:
    with joined():
        model, writer = Slope(), Writer()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        parallel = pt.AdaptiveDataParallel(model, optimizer, scaling_rule=pt.LinearScale())
        loader = pt.AdaptiveDataLoader(Numbers(60), batch_size=6)
        loader.autoscale_batch_size(6, (1, 2), gradient_accumulation=True)
        parallel.to_tensorboard(writer, 0, "before")
        assert set(writer.written) == {"before/Gain", "before/Learning_Rate_Factor", "before/Progress"}
        for inputs, _ in loader:
            assert pt.current_dataloader() is loader
            optimizer.zero_grad()
            parallel(inputs).mean().backward()
            optimizer.step()
        assert pt.current_dataloader() is None
        parallel.to_tensorboard(writer, 7, "model/")
        loader.to_tensorboard(writer, 7)
    assert writer.written["model/Gradient_Norm_Sqr"][0] > 0
    assert writer.written["model/Gradient_Variance"][0] > 0
    assert writer.written["model/Learning_Rate_Factor"] == (1.0, 7)
    assert writer.written["model/Progress"] == (10.0, 7)
    assert [
        writer.written[tag] for tag in ("Total_Batch_Size", "Local_Batch_Size", "Accumulation_Steps")
    ] == [
        (6, 7),
        (2, 7),
        (2, 7),
    ]


def test_that_a_script_may_ask_about_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("POLLUX_", "SLURM_", "MASTER_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    assert (env.replica_rank(), env.num_replicas(), env.num_nodes(), env.num_restarts()) == (0, 1, 1, 0)
    assert (env.job_id(), env.checkpoint_path(), env.share_path()) == (None, None, None)
    assert (env.master_addr(), env.master_port()) == ("127.0.0.1", 0)
    by_rank = {
        "RANK": "4",
        "WORLD_SIZE": "5",
        "POLLUX_GPUS_PER_NODE": "2,3",
        "POLLUX_RESTART_COUNT": "6",
        "POLLUX_CHECKPOINT_DIR": str(tmp_path / "job"),
        "SLURM_JOB_ID": "77",
        "MASTER_ADDR": "node-1",
        "MASTER_PORT": "1234",
    }
    for name, value in by_rank.items():
        monkeypatch.setenv(name, value)
    assert (env.replica_rank(), env.num_replicas(), env.num_nodes(), env.num_restarts()) == (4, 5, 2, 6)
    assert (env.job_id(), env.checkpoint_path()) == ("77", str(tmp_path / "job"))
    assert (env.master_addr(), env.master_port()) == ("node-1", 1234)
    share = env.share_path()
    assert share is not None
    assert Path(share).is_dir()


@pytest.mark.parametrize("is_declared", [True, False])
def test_that_a_scheduler_stepped_before_the_validation_steps_once_an_epoch(
    tmp_path: Path, is_declared: bool
) -> None:
    def run(stop_in: int | None) -> list[float]:
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        parallel = pt.AdaptiveDataParallel(model, optimizer, scheduler)
        training = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        validation = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        rates = []
        for epoch in pt.remaining_epochs_until(4) if is_declared else range(4):
            for inputs, _ in training:
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.zero_grad()
                parallel(inputs).mean().backward()
                optimizer.step()
            scheduler.step()
            for _ in validation:
                if epoch == stop_in:
                    os.kill(os.getpid(), signal.SIGTERM)
        return [*rates, optimizer.param_groups[0]["lr"]]

    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        run(stop_in=1)
    with joined(tmp_path):
        assert run(stop_in=None) == [0.25, 0.25, 0.125, 0.125, 0.0625]


def mean_backward(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor
) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = model(inputs).mean()
    loss.backward()
    return loss


def test_that_a_closure_is_called_in_every_micro_batch() -> None:
    weights = []
    for largest in (4, 2):
        with joined():
            trainee = Trainee(lr=0.1)
            loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
            loader.autoscale_batch_size(4, (1, largest), gradient_accumulation=True)
            for inputs, _ in loader:
                loss = trainee.optimizer.step(
                    functools.partial(mean_backward, trainee.parallel, trainee.optimizer, inputs)
                )
                assert loss is not None
            weights.append(trainee.weight)
    assert weights[1] == pytest.approx(weights[0], rel=1e-6)
    assert weights[0] == pytest.approx(-0.1 * (2.5 + 6.5))
