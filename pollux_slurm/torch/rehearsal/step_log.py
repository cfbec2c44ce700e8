"""Log each step's learning rates and weight decays, and the weights of some steps.

Runs of the same training are compared by the number of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pollux_slurm.agent.rehearsal_protocol import EventLog
from pollux_slurm.torch.rehearsal.snapshot import numbers_of

if TYPE_CHECKING:
    from pollux_slurm.torch.wrapped_model.wrapped_model import WrappedModel

# So many steps of each power of two have their weights logged: the same ones in each run.
_PER_POWER = 16


class StepLog:
    """Writes an event for each step."""

    def __init__(self, models: Callable[[], Sequence[WrappedModel]], events: EventLog) -> None:
        self._models, self._events = models, events

    def log(self, step: int) -> None:
        """Log a step that has been made; rates also contain what the script has set since."""
        weights = {}
        if is_compared(step):
            weights = {
                model.name: numbers_of(dict(model.module.named_parameters())) for model in self._models()
            }
        self._events.write("stepped", step=step, rates=self._rates(), models=weights)

    def _rates(self) -> dict[str, float]:
        rates = {}
        for model in self._models():
            for index, optimizer in enumerate(model.optimizers):
                for number, group in enumerate(optimizer.param_groups):
                    for key, words in (("lr", "learning rate"), ("weight_decay", "weight decay")):
                        if key in group:
                            name = f"{model.name}, optimizer {index}, group {number}"
                            rates[f"{words} ({name})"] = float(group[key])
        return rates


def is_compared(step: int) -> bool:
    """Return whether the weights of a step are logged: of each at first, then of ever fewer."""
    return step % max((1 << step.bit_length() - 1) // _PER_POWER, 1) == 0
