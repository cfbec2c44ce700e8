"""The same training on each device there is: results, step times, checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import mse_loss

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from pollux_slurm.torch.data.micro_batches import StepPlan
from pollux_slurm.torch.gradients.step_norms import NormReader, StepNorms
from pollux_slurm.torch.measurement.timestamps import HostCopy, timestamps_on
from tests.torch.scripts import Numbered
from tests.torch.single_replica import joined

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
pytestmark = pytest.mark.torch

BATCH = 14


def network(device: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=0.02)


def train(
    device: str, num_epochs: int, *, largest: int, amp: bool
) -> tuple[torch.nn.Module, pt.AdaptiveDataParallel]:
    model, optimizer = network(device)
    scaler = torch.amp.GradScaler(device, init_scale=64.0, enabled=amp)
    parallel = pt.AdaptiveDataParallel(model, optimizer, mp_scaler=scaler)
    loader = pt.AdaptiveDataLoader(Numbered(), batch_size=BATCH, pin_memory=device == "cuda")
    loader.autoscale_batch_size(BATCH, (1, largest), gradient_accumulation=True)
    for _ in pt.remaining_epochs_until(num_epochs):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
                outputs = parallel(inputs.to(device, non_blocking=True))
            scaler.scale(mse_loss(outputs.float(), targets.to(device, non_blocking=True))).backward()
            scaler.step(optimizer)
            scaler.update()
    return model, parallel


@on_each_device
@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("largest", [BATCH, 5])
def test_that_resumed_training_equals_plain_training(
    tmp_path: Path, device: str, amp: bool, largest: int
) -> None:
    expected, optimizer = network("cpu")
    dataset = Numbered()
    for _ in range(40):
        for start in range(0, len(dataset), BATCH):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
                outputs = expected(dataset.inputs[start : start + BATCH])
            mse_loss(outputs.float(), dataset.targets[start : start + BATCH]).backward()
            optimizer.step()
    for num_epochs in (5, 40):
        with joined(tmp_path, backend="gloo" if device == "cpu" else None) as session:
            found, parallel = train(device, num_epochs, largest=largest, amp=amp)
            times = session.measurements.profile.medians()
    tolerance = 2e-2 if amp else 1e-3
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name].cpu(), value, rtol=tolerance, atol=tolerance)
    assert parallel.statistics is not None
    assert parallel.statistics.var > 0
    assert times
    for one in times:
        assert min(one.micro_batch_s, one.last_time_s) > 0
        assert one.situation.gpu_type == (torch.cuda.get_device_name() if device == "cuda" else None)


@needs_gpu
def test_that_a_model_on_the_cpu_is_refused_under_nccl() -> None:
    model, optimizer = network("cpu")
    with joined(), pytest.raises(UsageError, match=r"model\.cuda\(\)"):
        pt.AdaptiveDataParallel(model, optimizer)


@on_each_device
def test_that_numbers_and_timestamps_are_read_from_the_device(device: str) -> None:
    make_timestamp = timestamps_on(torch.device(device))
    early = make_timestamp()
    copy = HostCopy(torch.arange(3, device=device) * 2.0)
    late = make_timestamp()
    assert copy.read() == [0.0, 2.0, 4.0]
    if device == "cuda":
        torch.cuda.synchronize()
    assert early.is_known()
    assert late.is_known()
    assert late.seconds_since(early) >= 0


def test_that_norms_read_later_are_those_of_the_previous_step() -> None:
    def norms(value: float) -> StepNorms:
        return StepNorms(parts=[torch.tensor([value])], mean={0: torch.tensor([2 * value])})

    step = StepPlan(start=0, size=8, num_nonempty=2, is_full=True, micro_batches=())
    at_once, later = NormReader(later=False), NormReader(later=True)
    read = [
        [reader.read(norms(value), step, None, num_groups=1) for value in (1.0, 3.0)]
        for reader in (at_once, later)
    ]
    assert [one.parts_sum for one in read[0]] == [(1.0,), (3.0,)]
    assert [one.parts_sum for one in read[1]] == [(0.0,), (1.0,)]
    assert [one.num_parts for one in read[1]] == [0, 2]
    # Mixed precision multiplies gradients, and so squares of norms by the square.
    scaled = at_once.read(norms(16.0), step, torch.tensor(4.0), num_groups=1)
    assert (scaled.parts_sum, scaled.mean_sqr) == ((1.0,), (2.0,))
