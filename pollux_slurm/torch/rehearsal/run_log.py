"""What a rehearsed run writes into its log of events: loops, sums, snapshots, and the error that ends it."""

from __future__ import annotations

import hashlib
import sys
import traceback
from types import TracebackType
from typing import Any

import torch

from pollux_slurm.agent.rehearsal_protocol import EventLog
from pollux_slurm.errors import PolluxError
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan
from pollux_slurm.torch.regroup.user_frames import is_user_code
from pollux_slurm.torch.rehearsal.loop_sums import take_sums, variable_of, zeros_of
from pollux_slurm.torch.rehearsal.snapshot import numbers_of, take_snapshot, take_variables
from pollux_slurm.torch.session.loader_protocol import Loader
from pollux_slurm.torch.session.session import Session


class RunLog:
    """Writes the events of one run. `precisions` is the live set of the types that its models compute in."""

    def __init__(self, session: Session, events: EventLog, precisions: set[str]) -> None:
        self._session, self._events, self._precisions = session, events, precisions
        self._zeros: set[str] = set()

    def place_of(self, loader: Loader) -> list[Any]:
        """Return what names a loop in all runs of a script."""
        return [self._session.progress_state.epoch_key, loader.name_across_epochs, loader.loop_number]

    def modules(self) -> list[torch.nn.Module]:
        """Return the script's models."""
        return [model.module for model in self._session.models]

    def _write(self, kind: str, loader: Loader, **fields: Any) -> None:
        epoch, name, number = self.place_of(loader)
        self._events.write(kind, loader=name, epoch=epoch, loop=number, **fields)

    def loop(self, loader: Loader) -> None:
        """Log the first micro-batch of a loop."""
        order = loader.order
        indices = None if order is None else order.indices.numpy()
        self._write(
            "loop",
            loader,
            length=None if indices is None else len(indices),
            order=None if indices is None else hashlib.sha256(indices.tobytes()).hexdigest()[:16],
            drops_last=loader.drop_last,
            batch_size=loader.batch_size,
        )

    def micro_batch(self, loader: Loader, plan: MicroBatchPlan) -> None:
        """Log a micro-batch that is no padding."""
        if not plan.is_padding:
            self._write(
                "micro_batch",
                loader,
                start=plan.start,
                size=plan.size,
                global_batch_size=loader.choice.global_batch_size,
                accumulation_steps=loader.choice.accumulation_steps,
            )

    def loop_end(self, kind: str, loader: Loader) -> None:
        """Log the end of a loop."""
        self._write(kind, loader, steps=self._session.progress_state.num_steps)

    def note_zeros(self) -> None:
        """Note which of the script's sums are zero, as an outermost loop begins."""
        self._zeros = zeros_of(take_sums())

    def sums(self, loader: Loader) -> None:
        """Log the sums that the script's variables have over a loop that trains nothing."""
        if not self._session.loops.has_stepped:
            sums = {name: values for name, values in take_sums().items() if name in self._zeros}
            self._write("summed", loader, variable=variable_of(loader), sums=sums)

    def snapshot(self, moment: str, **fields: Any) -> None:
        """Log the weights, and what the script's variables are."""
        session = self._session
        models = {model.name: numbers_of(dict(model.module.named_parameters())) for model in session.models}
        # One with p=0 is a dropout in name alone.
        layers = sorted(
            {
                type(part).__name__
                for model in session.models
                for part in model.module.modules()
                if getattr(part, "p", None) != 0
            }
        )
        snapshot = take_snapshot() if session.rank == 0 else take_variables()
        self._events.write(
            "snapshot",
            moment=moment,
            epoch=session.progress_state.epoch_key,
            step=session.progress_state.num_steps,
            precisions=sorted(self._precisions),
            in_loop=session.loops.is_running,
            models=models,
            layers=layers,
            **snapshot,
            **fields,
        )


class ErrorLog:
    """Logs the error that ends the script, with the innermost line of the script's own code.

    `has_stepped`: the script has made a step in this process.
    """

    def __init__(self, events: EventLog) -> None:
        self._events, self._shown_by, self.has_stepped = events, sys.excepthook, False
        sys.excepthook = self._hook

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
        own = [place for place in lines if is_user_code(place[0])] or lines or [("", 0)]
        self._events.write(
            "error",
            type=kind.__name__,
            message=str(error),
            is_ours=isinstance(error, PolluxError),
            traceback="".join(traceback.format_exception(kind, error, trace)),
            file=own[-1][0],
            line=own[-1][1],
            has_stepped=self.has_stepped,
        )
        self._shown_by(kind, error, trace)
