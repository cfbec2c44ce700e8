"""The events of a training, and who hears them.

`Session` wires them: the order in which its parts hear each event stands there, in one list. Only what needs
no answer is an event; what is asked, or decides, is called by the one that needs the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, ParamSpec

from pollux_slurm.agent.environment.job_environment import JobEnvironment
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan, StepPlan
from pollux_slurm.torch.session.loader_protocol import Loader

P = ParamSpec("P")


class Event(Generic[P]):
    """Something that happens in a training. A call tells it to those who hear it, in their order."""

    def __init__(self, *hearers: Callable[P, object]) -> None:
        self._hearers = hearers

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for hear in self._hearers:
            hear(*args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """All events of a training, in the order in which they come. Loops are outermost ones."""

    declare_epochs: Event[[int]]
    begin_epoch: Event[[]]
    begin_loop: Event[[Loader]]
    begin_micro_batch: Event[[Loader, MicroBatchPlan]]
    end_micro_batch: Event[[Loader]]
    end_step: Event[[Loader, StepPlan]]
    step_done: Event[[]]
    end_loop: Event[[Loader]]
    leave_loop: Event[[Loader]]
    end_epoch: Event[[]]
    leave_epochs: Event[[]]
    end_training: Event[[]]
    finish: Event[[]]
    begin_run: Event[[JobEnvironment, int]]
    failed: Event[[BaseException]]
    close: Event[[]]


class Listener:
    """Hears of a training from outside of its session. Each method does nothing unless overridden."""

    def declare_epochs(self, num_epochs: int) -> None:
        """There will be this many epochs."""

    def enter_loop(self, loader: Loader, *, is_outermost: bool) -> None:
        """A loop is about to begin, also one inside of another."""

    def begin_micro_batch(self, loader: Loader, plan: MicroBatchPlan) -> None:
        """The script is about to get a micro-batch of the outermost loop."""

    def end_micro_batch(self, loader: Loader) -> None:
        """The script has asked for the next one."""

    def end_step(self, loader: Loader, step: StepPlan) -> None:
        """A global batch was used; its boundary follows."""

    def step_done(self) -> None:
        """The boundary is crossed, with the same replicas after it."""

    def end_loop(self, loader: Loader) -> None:
        """The outermost loop has come to the end of its data; a boundary follows."""

    def loop_done(self, loader: Loader) -> None:
        """That boundary is crossed."""

    def leave_loop(self, loader: Loader, *, is_outermost: bool, is_left: bool) -> None:
        """A loop is over; `is_left`: before the end of its data, by `break` or an error."""

    def end_epoch(self) -> None:
        """An epoch is about to end."""

    def finish(self) -> None:
        """No epoch is left, and the last checkpoint is written."""

    def begin_run(self, environment: JobEnvironment) -> None:
        """The training is about to go on with other replicas."""

    def run_begun(self) -> None:
        """It goes on with them."""
