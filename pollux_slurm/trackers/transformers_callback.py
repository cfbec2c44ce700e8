"""`PolluxMonitor` for Hugging Face's Trainer: the figures of adaptive training among its logs."""

from __future__ import annotations

import logging
import sys
from typing import Any

from pollux_slurm.extras import extras_named
from pollux_slurm.torch.session.current_session import current_session
from pollux_slurm.trackers.series import MOVE_S, describe_moves, figures_as_scalars
from pollux_slurm.trackers.sinks import sink_of

with extras_named():
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_LOG = logging.getLogger(__name__)


class PolluxMonitor(TrainerCallback):  # type: ignore[misc]
    """Add batch size, GPUs, goodput and so on to what the Trainer logs of its steps, and note each move.

    It must come before the callbacks that report. `PolluxTrainer(callbacks=[PolluxMonitor()])` does that.

    Examples:
        >>> trainer = PolluxTrainer(
        ...     model=model,
        ...     args=TrainingArguments("out", use_cpu=True, report_to="none"),
        ...     train_dataset=dataset,
        ...     callbacks=[PolluxMonitor()],
        ... )
    """

    def __init__(self) -> None:
        self._has_noted_move = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the figures to the logs of training steps; those of an evaluation have none."""
        session = current_session()
        figures = session.figures()
        if logs is None or figures is None or not ("loss" in logs or "learning_rate" in logs):
            return
        logs |= figures_as_scalars(figures)
        allocations = session.history.allocations
        if self._has_noted_move or not allocations or allocations[-1].run_number != session.run_number:
            return
        self._has_noted_move = True
        lines = describe_moves(allocations)
        if lines and allocations[-1].move_s is not None:
            logs[MOVE_S] = allocations[-1].move_s
        if lines and state.is_world_process_zero:
            self._note_move(lines, session.num_steps)

    def _note_move(self, lines: list[str], step: int) -> None:
        """Write the moves as text to the runs that are open. A tracker must not stop training."""
        try:
            wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
            runs = [getattr(wandb, "run", None), mlflow.active_run() if mlflow is not None else None]
            for run in runs:
                if run is not None:
                    sink_of(run).write_move(lines, None, step)
        except Exception as error:
            _LOG.warning("a tracker has failed, training goes on: %r", error)
