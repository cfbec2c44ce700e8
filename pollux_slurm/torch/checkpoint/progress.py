"""The library's own states in a checkpoint: progress and measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pollux_slurm.agent.measure.fit_and_batch_choice import Tuner
from pollux_slurm.agent.measure.profile import StepProfile
from pollux_slurm.torch.checkpoint.default_names import OWN


class ProgressState:
    """Epochs and progress, as checkpointed state. `epoch` is the one under way in this process.

    `run_examples` counts examples of all replicas since this process started; it is in no checkpoint.
    """

    name = f"{OWN}progress"

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.total_epochs: int | None = None
        self.finished_epochs, self.num_steps, self.progress = 0, 0, 0.0
        self.run_examples = 0

    @property
    def epoch_key(self) -> int:
        """The epoch that positions and orders belong to; −1 outside of `remaining_epochs_until`."""
        return -1 if self.epoch is None else self.epoch

    def end_epoch(self) -> None:
        """Count the epoch under way as finished."""
        self.finished_epochs, self.epoch = self.finished_epochs + 1, None

    def begin_run(self) -> None:
        """Count the examples of another run."""
        self.run_examples = 0

    def sync(self) -> None:
        """Nothing to do: every replica counts the same."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "finished_epochs": self.finished_epochs,
            "num_steps": self.num_steps,
            "progress": self.progress,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.finished_epochs, self.num_steps = state["finished_epochs"], state["num_steps"]
        self.progress = state["progress"]


class MeasuredState:
    """Step times and the fitted model, as checkpointed state: a restart need not measure again."""

    name = f"{OWN}measured"

    def __init__(self, profile: StepProfile, tuner: Tuner) -> None:
        self._profile, self._tuner = profile, tuner

    def sync(self) -> None:
        """Nothing to do: rank 0 measures."""

    def state_dict(self) -> dict[str, Any]:
        return {"profile": self._profile.state_dict(), "tuner": self._tuner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._profile.load_state_dict(state["profile"])
        self._tuner.load_state_dict(state["tuner"])
