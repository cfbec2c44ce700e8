"""The epochs of a training: when they begin and end, on all replicas alike."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pollux_slurm.errors import PolluxError
from pollux_slurm.torch.boundary.sigterm import StopFlag
from pollux_slurm.torch.boundary.step_boundary import RegroupPlace, StepBoundary
from pollux_slurm.torch.checkpoint.progress import ProgressState
from pollux_slurm.torch.session.events import Events
from pollux_slurm.torch.session.loops import Loops
from pollux_slurm.torch.session.regrouping import Regrouping
from pollux_slurm.torch.session.trained_models import TrainedModels
from pollux_slurm.torch.session.training_steps import TrainingSteps

_LOG = logging.getLogger(__name__)


class Epochs:
    """Begins and ends the epochs, for `remaining_epochs_until` and frameworks.

    `leave_together` leaves something by `break`, as all replicas must.
    """

    def __init__(
        self,
        *,
        events: Events,
        progress: ProgressState,
        loops: Loops,
        models: TrainedModels,
        steps: TrainingSteps,
        boundary: StepBoundary,
        regrouping: Regrouping,
        stop: StopFlag,
        leave_together: Callable[[str], None],
    ) -> None:
        self._events, self._progress, self._loops = events, progress, loops
        self._models, self._steps = models, steps
        self._boundary, self._regrouping, self._stop = boundary, regrouping, stop
        self._leave_together = leave_together

    def declare(self, num_epochs: int) -> None:
        """Set how many epochs there will be."""
        self._regrouping.join_training()
        self._progress.total_epochs = num_epochs
        self._events.declare_epochs(num_epochs)

    def begin(self) -> None:
        """Begin or resume the first epoch that is not finished."""
        self._loops.end_all("an epoch began")
        self._progress.epoch = self._progress.finished_epochs
        self._events.begin_epoch()

    def end(self) -> None:
        """Count the epoch as finished: a start from a later checkpoint repeats none of it."""
        self._events.end_epoch()
        is_last = self._progress.finished_epochs == self._progress.total_epochs
        self._boundary.cross(
            (), proposal=None, wait=True, is_last=is_last, regroups_at=RegroupPlace.EPOCH_END
        )

    def finish(self) -> None:
        """Write the last checkpoint, report the end, and restore SIGTERM's handler: no epoch is left."""
        # Also where none was left at this start: the script may write the weights from here on.
        self._models.finish_restore()
        self._loops.check_steps()
        self._events.leave_epochs()
        self._end_training()
        # In training by steps an epoch may be under way, and goes on where training does.
        self._progress.epoch = None
        self._regrouping.replay.end_epochs()
        if self._stop.is_set:
            # SIGTERM came after the last boundary.
            self._stop.raise_stopped()
        self._events.finish()

    def _end_training(self) -> None:
        self._regrouping.note_step()
        if self._steps.is_dirty and self._boundary.checkpointer.is_enabled:
            self._boundary.checkpoint()
            self._steps.is_dirty = False
        self._events.end_training()

    def leave(self, *, by_break: bool) -> None:
        """Leave the epochs before their end: by `break` on all ranks, or by an error on some."""
        self._events.leave_epochs()
        if not by_break:
            # Other ranks may train on, so no collective is possible.
            self._stop.leave_training()
            return
        self._loops.end_all("the epochs were left")
        self.leave_together()
        self._regrouping.replay.end_epochs()
        try:
            self._end_training()
        except (PolluxError, RuntimeError) as error:
            # Python ignores what is raised while a generator is closed.
            _LOG.error("no checkpoint was written after the epochs: %s", error)
        self._regrouping.replay.skip()
        self._stop.end_training()

    def leave_together(self) -> None:
        """Leave the epochs by `break`; end this process where another rank goes on with them."""
        self._leave_together("the epochs")
