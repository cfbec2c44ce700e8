"""`Tracker`: a loop's values in one run of W&B, MLflow or TensorBoard, by optimizer step, over all moves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pollux_slurm.agent.environment.tracker_runs import record_mlflow_run
from pollux_slurm.errors import UsageError
from pollux_slurm.extras import extras_named
from pollux_slurm.torch.session.current_session import current_session
from pollux_slurm.trackers.logged_steps import LoggedSteps
from pollux_slurm.trackers.series import as_scalars, describe_moves, figures_as_scalars
from pollux_slurm.trackers.sinks import Sink, sink_of

_LOG = logging.getLogger(__name__)


class Tracker:
    """Log a loop's values, by optimizer step, into one run of W&B, MLflow or TensorBoard over all moves.

    `run` is what `open_run` returned, None on the other ranks.

    Args:
        open_run: Called on rank 0 only: it returns `wandb.init(...)`, `mlflow.start_run(...)` or a
            `SummaryWriter`. If it fails at the job's first start, its error ends the script. After a move it
            is a warning, and nothing is logged.
        every: Each so many-th step is logged, and the first one after each start.

    Raises:
        UsageError: `every` is below 1, or `open_run` returned something else.

    Examples:
        >>> from torch.utils.tensorboard import SummaryWriter
        >>> tracker = Tracker(lambda: SummaryWriter("runs/digits"), every=10)
        >>> model = pollux.AdaptiveDataParallel(model, optimizer)
        >>> for inputs, targets in pollux.AdaptiveDataLoader(dataset, batch_size=32):
        ...     loss = loss_fn(model(inputs), targets)
        ...     loss.backward()
        ...     optimizer.step()
        ...     tracker.log({"loss": loss})
        >>> tracker.log({"accuracy": 0.9})
        >>> tracker.flush()
    """

    def __init__(self, open_run: Callable[[], Any], *, every: int = 1) -> None:
        if every < 1:
            raise UsageError(f"every={every!r} must be 1 or more")
        self._session, self._every = current_session(), every
        # Of this process: the first step that is logged, and the last one whose figures are.
        self._first_step, self._figures_step = 0, 0
        self._has_warned = False
        self.run: Any = None
        self._sink: Sink | None = None
        self._logged = LoggedSteps(None, "")
        if self._session.rank == 0:
            self._open(open_run)

    def _open(self, open_run: Callable[[], Any]) -> None:
        try:
            with extras_named():
                self.run = open_run()
            self._sink = sink_of(self.run)
        except Exception as error:
            if not self._session.is_resumed or isinstance(error, UsageError):
                raise
            _LOG.warning("training goes on without its tracker, which could not be opened: %r", error)
            return
        if self._sink.run_id is not None:
            self._logged = LoggedSteps(self._session.checkpoint_dir, self._sink.run_id)
        # As at the first step, which a job may not reach.
        record_mlflow_run(self._session.checkpoint_dir)

    def log(self, values: Mapping[str, Any] | None = None) -> None:
        """Log numbers at the present optimizer step, with the figures of adaptive training.

        In a training loop call it after `optimizer.step()`, for each micro-batch: where gradients are only
        accumulated it does nothing. Between loops the values are those of the last step, whatever `every` is.

        Args:
            values: Numbers, or tensors of one element, by name; None: only the figures.
        """
        if self._sink is None:
            return
        session = self._session
        step, is_step = session.num_steps, session.models.has_open_step
        if is_step:
            self._first_step = self._first_step or step
            # A run that was killed may have logged steps that are made again now.
            if step <= self._logged.last or (step % self._every and step != self._first_step):
                return
        elif session.loops.is_running or step < self._logged.last:
            return
        scalars = as_scalars(values or {})
        try:
            self._write(self._sink, scalars, step, is_step=is_step)
        except Exception as error:
            # A tracker must not stop training.
            if not self._has_warned:
                self._has_warned = True
                _LOG.warning("the tracker has failed, training goes on: %r", error)
        self._logged.note(step)

    def flush(self) -> None:
        """Wait until the tool has all values. It need not be called: the end of the process does so.

        A server that does not answer is waited for ten seconds.
        """
        if self._sink is not None:
            self._sink.flush()

    def _write(self, sink: Sink, scalars: dict[str, float], step: int, *, is_step: bool) -> None:
        is_first = self._figures_step == 0
        figures = self._session.figures() if is_step and step > self._figures_step else None
        if figures is not None:
            self._figures_step = step
            scalars |= figures_as_scalars(figures)
        if scalars:
            sink.write(scalars, step)
        if figures is not None and is_first:
            self._write_move(sink, step)

    def _write_move(self, sink: Sink, step: int) -> None:
        """Write the move that brought the job here, if it is not the job's first run."""
        self._session.history.note_step(step)
        allocations = self._session.history.allocations
        lines = describe_moves(allocations)
        if lines:
            sink.write_move(lines, allocations[-1].move_s, step)
