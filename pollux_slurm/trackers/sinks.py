"""Where a tracker's values go: one class for each tool, over the object that the tool gave the user.

None of the tools is imported here: their objects are known by what they can do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pollux_slurm.errors import UsageError
from pollux_slurm.trackers.background_batches import BackgroundBatches
from pollux_slurm.trackers.series import MOVE_S, STEP


class Sink(Protocol):
    """One run of one tool. `run_id` is None where the tool itself replaces what is logged again.

    `write` writes scalars at an optimizer step. `write_move` writes the last of the lines on all moves.
    `flush` waits until the tool has them, for a bounded time.
    """

    @property
    def run_id(self) -> str | None: ...

    def write(self, values: Mapping[str, float], step: int) -> None: ...

    def write_move(self, lines: Sequence[str], move_s: float | None, step: int) -> None: ...

    def flush(self) -> None: ...


class WandbSink:
    """A run of W&B. Its x axis is a metric of ours.

    W&B's own step counts calls, and `wandb sync` numbers the rows of an offline run anew that began
    at a lower step than the one before had reached (0.31).
    """

    def __init__(self, run: Any) -> None:
        self._run, self.run_id = run, str(run.id)
        self._defined: set[str] = set()

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name in values.keys() - self._defined:
            self._run.define_metric(name, step_metric=STEP)
            self._defined.add(name)
        self._run.log({**values, STEP: step})

    def write_move(self, lines: Sequence[str], move_s: float | None, step: int) -> None:
        self._run.summary["pollux/moves"] = list(lines)
        if move_s is not None:
            self.write({MOVE_S: move_s}, step)

    def flush(self) -> None:
        """Do nothing: W&B's own process has each row."""


class MlflowSink:
    """A run of MLflow, which the object of `mlflow.start_run()` names."""

    def __init__(self, run: Any) -> None:
        from mlflow.entities import Metric, RunTag
        from mlflow.tracking import MlflowClient

        self.run_id = str(run.info.run_id)
        self._client, self._metric, self._tag = MlflowClient(), Metric, RunTag
        self._batches = BackgroundBatches[Any](self._send)

    def write(self, values: Mapping[str, float], step: int) -> None:
        now_ms = int(time.time() * 1000)
        self._batches.put(*(self._metric(name, value, now_ms, step) for name, value in values.items()))

    def write_move(self, lines: Sequence[str], move_s: float | None, step: int) -> None:
        self._batches.put(self._tag(f"pollux.move.{len(lines):03d}", lines[-1]))
        if move_s is not None:
            self.write({MOVE_S: move_s}, step)

    def flush(self) -> None:
        self._batches.flush()

    def _send(self, values: Sequence[Any]) -> None:
        tags = [value for value in values if isinstance(value, self._tag)]
        metrics = [value for value in values if not isinstance(value, self._tag)]
        self._client.log_batch(self.run_id, metrics=metrics, tags=tags)


class TensorBoardSink:
    """A `SummaryWriter` of torch, or another with its `add_scalar` and `add_text`."""

    run_id = None

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def write_move(self, lines: Sequence[str], move_s: float | None, step: int) -> None:
        self._writer.add_text("pollux/moves", lines[-1], step)
        if move_s is not None:
            self.write({MOVE_S: move_s}, step)

    def flush(self) -> None:
        self._writer.flush()


def sink_of(run: Any) -> Sink:
    """Return the sink for what the user has opened. Raises `UsageError` for anything else."""
    if hasattr(run, "define_metric") and hasattr(run, "log"):
        return WandbSink(run)
    if hasattr(run, "add_scalar"):
        return TensorBoardSink(run)
    if hasattr(getattr(run, "info", None), "run_id"):
        return MlflowSink(run)
    raise UsageError(
        "a Tracker takes a function that returns wandb.init(...), mlflow.start_run(...) or a SummaryWriter, "
        f"not {type(run).__module__}.{type(run).__qualname__}"
    )
