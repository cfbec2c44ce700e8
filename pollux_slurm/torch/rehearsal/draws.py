"""Who draws random numbers while a script trains: the script, its model, or its dataset.

What is drawn differs after a move. A rehearsal sees it by the generators' states, before and after each part
of a pass: those of the process, and those that the script's variables hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from pollux_slurm.torch.rehearsal.snapshot import user_frames

_NUM_PASSES = 6
_OWN = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)

States = dict[str, Any]


class DrawWatch:
    """Looks at the first passes of a run; `tell` gets who has drawn, and from which generators."""

    def __init__(
        self, models: Callable[[], Sequence[torch.nn.Module]], tell: Callable[[str, list[str]], None]
    ) -> None:
        self._models, self._tell = models, tell
        self._num_passes = 0
        self._last: States | None = None
        self._hooks: list[Any] = []

    def begin_loop(self) -> None:
        """What is drawn between loops is nobody's."""
        self._last = None

    def begin_pass(self) -> None:
        """A batch is ready: what was drawn since the pass before, the dataset has drawn."""
        if self._num_passes >= _NUM_PASSES:
            return
        self._num_passes += 1
        self._step("dataset")
        inner = {id(model) for model in self._models()}

        def before(module: torch.nn.Module, args: Any) -> None:
            if id(module) in inner:
                self._step("script")

        def after(module: torch.nn.Module, args: Any, output: Any) -> None:
            if id(module) in inner:
                self._step("model")

        self._hooks = [register_module_forward_pre_hook(before), register_module_forward_hook(after)]

    def end_pass(self) -> None:
        """The script asks for the next batch."""
        if self._hooks:
            self.leave()
            self._step("script")

    def leave(self) -> None:
        """Look no further in this pass."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _step(self, who: str) -> None:
        before, self._last = self._last, _states()
        if before is not None:
            drawn = [name for name, state in self._last.items() if before.get(name, state) != state]
            if drawn:
                self._tell(who, drawn)


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
