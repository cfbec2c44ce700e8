"""What is told of the models of a training: how many parameters they have, and their precision."""

from __future__ import annotations

import pytest
import torch

import pollux_slurm.torch as pt
from tests.torch.single_replica import Numbers, joined

pytestmark = pytest.mark.torch


class Quantized(torch.nn.Module):
    """A model whose first weights are whole numbers, which are not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.quantized = torch.nn.Parameter(torch.ones(3, dtype=torch.uint8), requires_grad=False)
        self.last = torch.nn.Linear(1, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(inputs)
        return output


def wrapped(model: torch.nn.Module) -> pt.AdaptiveDataParallel:
    trained = [one for one in model.parameters() if one.requires_grad]
    return pt.AdaptiveDataParallel(model, torch.optim.SGD(trained, lr=0.1))


def test_that_frozen_layers_count_since_a_script_may_unfreeze_them() -> None:
    with joined() as session:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
        model[0].requires_grad_(False)
        wrapped(model)
        frozen = session.models.num_parameters
        model.requires_grad_(True)
        assert session.models.num_parameters == frozen == 16 + 5
        wrapped(torch.nn.Linear(1, 1))
        assert session.models.num_parameters == 21 + 2


@pytest.mark.parametrize(
    ("is_around", "precision"), [(None, "float32"), ("model", "bfloat16"), ("loss", "float32")]
)
def test_that_precision_is_that_of_the_first_model_that_is_used(
    is_around: str | None, precision: str
) -> None:
    with joined() as session:
        wrapped(torch.nn.Linear(1, 1))
        used = wrapped(Quantized())
        loader = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        assert session.models.precision is None
        for inputs, _ in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=is_around == "model"):
                outputs = used(inputs)
            with torch.autocast("cpu", torch.bfloat16, enabled=is_around == "loss"):
                loss = outputs.float().square().mean()
            loss.backward()
            used.zero_grad()
            break
        assert session.models.precision == precision
