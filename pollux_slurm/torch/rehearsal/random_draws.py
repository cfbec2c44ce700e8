"""Find out who draws random numbers while a script trains: the script, its model, or its dataset.

These numbers differ after a move. Draws are detected by the states of generators, the process's and those in
the script's variables, before and after each part of a micro-batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from pollux_slurm.torch.regroup.user_frames import user_frames

_NUM_EXAMINED = 6
_OWN = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)

States = dict[str, Any]


class RandomDrawDetector:
    """Examines the first micro-batches of a run; calls `on_draw` with who has drawn, and the generators."""

    def __init__(
        self, models: Callable[[], Sequence[torch.nn.Module]], on_draw: Callable[[str, list[str]], None]
    ) -> None:
        self._models, self._on_draw = models, on_draw
        self._num_examined = 0
        self._last: States | None = None
        self._hooks: list[Any] = []

    def begin_loop(self) -> None:
        """Ignore what was drawn between loops."""
        self._last = None

    def begin_micro_batch(self) -> None:
        """Count draws since the last micro-batch as the dataset's: a batch was loaded."""
        if self._num_examined >= _NUM_EXAMINED:
            return
        self._num_examined += 1
        self._step("dataset")
        inner = {id(model) for model in self._models()}

        def before(module: torch.nn.Module, args: Any) -> None:
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
        before, self._last = self._last, _states()
        if before is not None:
            drawn = [name for name, state in self._last.items() if before.get(name, state) != state]
            if drawn:
                self._on_draw(who, drawn)


def _states() -> States:
    states: States = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": _state_of(np.random.mtrand._rand),
        "random": random.getstate(),
    }
    if torch.cuda.is_initialized():
        states["torch.cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    for frame in user_frames():
        for name, value in list(frame.f_locals.items()):
            if isinstance(value, _OWN):
                states.setdefault(name, _state_of(value))
    return states


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    state = generator.bit_generator.state if isinstance(generator, np.random.Generator) else None
    return repr(generator.get_state(legacy=False) if state is None else state)
