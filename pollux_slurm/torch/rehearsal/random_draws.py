"""Find out who draws random numbers while a script trains: the script, its model, or its dataset.

These numbers differ after a move. Draws are detected by the states of generators, the process's and those in
the script's variables, before and after each part of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from pollux_slurm.torch.measurement.precision import computed_dtype
from pollux_slurm.torch.rehearsal.random_states import Root, States, read_states

_NUM_EXAMINED = 6


class RandomDrawDetector:
    """Examines micro-batches of a run, the first ones and then ever fewer.

    Calls `on_draw` with who has drawn, and the generators: the process's, and those within `roots`.
    `precisions` are the types of the models' weights, and of what they compute under autocast.
    """

    def __init__(
        self,
        models: Callable[[], Sequence[torch.nn.Module]],
        on_draw: Callable[[str, list[str]], None],
        roots: Callable[[], Iterable[Root]],
    ) -> None:
        self._models, self._on_draw, self._roots = models, on_draw, roots
        self.precisions: set[str] = set()
        self._num_batches = 0
        self._last: States | None = None
        self._hooks: list[Any] = []

    def begin_loop(self) -> None:
        """Ignore what was drawn between loops."""
        self._last = None

    def begin_micro_batch(self) -> None:
        """Count draws since the last micro-batch as the dataset's: a batch was loaded."""
        self._num_batches += 1
        if self._num_batches > _NUM_EXAMINED and self._num_batches.bit_count() > 1:
            self._last = None
            return
        self._step("dataset")
        inner = {id(model) for model in self._models()}

        def before(module: torch.nn.Module, args: Any) -> None:
            self._note_precision(module)
            if id(module) in inner:
                self._step("script")

        def after(module: torch.nn.Module, args: Any, output: Any) -> None:
            if id(module) in inner:
                self._step("model")

        self._hooks = [register_module_forward_pre_hook(before), register_module_forward_hook(after)]

    def end_micro_batch(self) -> None:
        """Count draws since the forward pass as the script's: it requests the next batch."""
        if self._hooks:
            self.leave()
            self._step("script")

    def leave(self) -> None:
        """Stop examining this micro-batch."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _step(self, who: str) -> None:
        before, self._last = self._last, read_states(self._roots())
        if before is not None:
            drawn = [name for name, state in self._last.items() if before.get(name, state) != state]
            if drawn:
                self._on_draw(who, drawn)

    def _note_precision(self, module: torch.nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            self.precisions.add(str(computed_dtype(parameter)))
