"""How an error ends the script: what is noted for the next start, shown, and explained."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from pollux_slurm.agent.environment.job_environment import JobEnvironment
from pollux_slurm.errors import TrainingError
from pollux_slurm.torch.boundary.sigterm import StopFlag
from pollux_slurm.torch.checkpoint.progress import ProgressState
from pollux_slurm.torch.coordination.same_calls import SameCalls
from pollux_slurm.torch.failures.memory_bounds import OutOfMemoryWatch, is_out_of_memory
from pollux_slurm.torch.failures.rank_failures import explain_loss, is_peer_lost, note_failure
from pollux_slurm.torch.failures.resume_notes import ResumeNotes
from pollux_slurm.torch.failures.uncaught_errors import UncaughtErrors

_LOG = logging.getLogger(__name__)


class ScriptErrors:
    """Observes the error that ends the script, from `install` to `remove`.

    `failed` is called with it. `has_failed` is True from then on, unless the process was stopped anyway.
    `notes` explain an error after a restart, up to the end of the epoch that was resumed.
    """

    def __init__(
        self,
        environment: JobEnvironment,
        *,
        run_number: int,
        directory: Path | None,
        is_resumed: bool,
        progress: ProgressState,
        stop: StopFlag,
        same_calls: SameCalls,
        memory_watch: OutOfMemoryWatch,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._environment, self._run_number, self._directory = environment, run_number, directory
        self._progress, self._stop, self._same_calls = progress, stop, same_calls
        self._memory_watch, self._failed = memory_watch, failed
        self._hook = UncaughtErrors(before=self._before_traceback, after=self._after_traceback)
        self.install, self.remove = self._hook.install, self._hook.remove
        self.has_failed = False
        self.begin_training(is_resumed=is_resumed)

    def begin_training(self, *, is_resumed: bool) -> None:
        """Begin, or resume, a training whose states are restored."""
        self.notes, self._resumed_at = ResumeNotes(is_resumed=is_resumed), self._progress.num_steps

    def begin_run(self, environment: JobEnvironment, run_number: int) -> None:
        """Note errors for another run."""
        self._environment, self._run_number = environment, run_number

    def _before_traceback(self, error: BaseException) -> bool:
        """Take note of the error that ends the script; return whether its traceback is to be printed."""
        is_lost = is_peer_lost(error)
        # The others have stopped, or a start with smaller batches repairs it: this process was stopped, too.
        self.has_failed = not (self._stop.is_set and (is_lost or is_out_of_memory(error)))
        self._stop.ends_unfinished |= not self.has_failed
        self._failed(error)
        return self._note(error) if self.has_failed else not is_lost

    def _after_traceback(self, error: BaseException) -> None:
        """Explain the error after its traceback, within the resumed epoch (outside of epochs: to a step)."""
        if is_peer_lost(error) and self._environment.world_size > 1:
            explain_loss(self._environment)
            return
        epoch = self._progress.epoch
        if epoch is not None or self._progress.num_steps == self._resumed_at:
            self.notes.explain(error, epoch=epoch)

    def leave_loop(self) -> None:
        """Keep the local batch under way in a loop that an error leaves."""
        self._memory_watch.leave()
        self._stop.ends_unfinished |= self._stop.is_set

    def leave_together(self, what: str) -> None:
        """Leave a loop, or the epochs, by `break`; end this process where another rank goes on with it."""
        try:
            self._same_calls.leave(what)
        except TrainingError as error:
            # Python ignores what is raised while a generator is closed.
            self._note(error)
            _LOG.error("%s", error)
            sys.stdout.flush()
            os._exit(1)

    def _note(self, error: BaseException) -> bool:
        return note_failure(error, self._directory, self._environment, run_number=self._run_number)
