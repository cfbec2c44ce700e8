"""`PolluxMonitor` for Lightning: the figures of adaptive training in the Trainer's loggers."""

from __future__ import annotations

import logging
from typing import Any

from pollux_slurm.extras import extras_named
from pollux_slurm.torch.session.current_session import current_session
from pollux_slurm.trackers.series import MOVE_S, describe_moves, figures_as_scalars
from pollux_slurm.trackers.sinks import Sink, sink_of

with extras_named():
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

_LOG = logging.getLogger(__name__)


class PolluxMonitor(Callback):
    """Log batch size, GPUs, goodput and so on as the module's own values are, and note each move.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(strategy="pollux", callbacks=[PolluxMonitor()], logger=False)
    """

    def __init__(self) -> None:
        self._has_noted_move = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the figures; Lightning writes them at the steps at which it logs."""
        session = current_session()
        figures = session.figures()
        if figures is None:
            return
        values = figures_as_scalars(figures)
        allocations = session.history.allocations
        if not self._has_noted_move and allocations and allocations[-1].run_number == session.run_number:
            self._has_noted_move = True
            lines = describe_moves(allocations)
            if lines and trainer.is_global_zero:
                self._note_move(trainer, lines, allocations[-1].move_s, session.num_steps)
        pl_module.log_dict(values, on_step=True, on_epoch=False, batch_size=1)

    def _note_move(self, trainer: Trainer, lines: list[str], move_s: float | None, step: int) -> None:
        """Write the moves as text. A tracker must not stop training."""
        try:
            for logger in trainer.loggers:
                sink = _sink_of(logger)
                if sink is not None:
                    sink.write_move(lines, move_s, step)
                elif move_s is not None:
                    logger.log_metrics({MOVE_S: move_s}, step)
        except Exception as error:
            _LOG.warning("a tracker has failed, training goes on: %r", error)


def _sink_of(logger: Logger) -> Sink | None:
    if isinstance(logger, MLFlowLogger):
        return sink_of(logger.experiment.get_run(str(logger.run_id)))
    return sink_of(logger.experiment) if isinstance(logger, (TensorBoardLogger, WandbLogger)) else None
