"""An error like that of a GPU without enough memory, raised in a forward pass, once in a run.

`pollux run` then starts the script again, with smaller micro-batches: its batches are split from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from pollux_slurm.agent.rehearsal_protocol import EventLog


class PlannedLackOfMemory:
    """Raises `OutOfMemoryError` in the first forward pass of a model of the script in one micro-batch."""

    def __init__(
        self, folder: Path, rank: int, models: Callable[[], Sequence[torch.nn.Module]], events: EventLog
    ) -> None:
        self._file, self._models, self._events = folder / f"out-of-memory-{rank}", models, events
        self._hook: Any = None
        # Also in the process that was started after the error.
        self.is_done = self._file.exists()

    def begin_micro_batch(self) -> None:
        """Let a forward pass in this micro-batch fail."""
        inner = {id(model) for model in self._models()}

        def fail(module: torch.nn.Module, args: Any) -> None:
            if id(module) in inner:
                self.is_done = True
                self.end_micro_batch()
                self._file.touch()
                self._events.write("out_of_memory")
                raise torch.OutOfMemoryError(
                    "out of memory: raised by `pollux rehearse`, as on a GPU that is too small"
                )

        self._hook = register_module_forward_pre_hook(fail)

    def end_micro_batch(self) -> None:
        """Let no forward pass fail."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
