"""The allocations that a job has trained on, as checkpointed state: each move, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pollux_slurm.torch.checkpoint.default_names import OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The GPUs of one run of the job, which has trained from `first_step` on.

    `move_s` is the time from the last step in the checkpoint to the end of the first step after it, work
    that was lost included; None for the first run.
    """

    run_number: int
    num_gpus: int
    num_nodes: int
    first_step: int
    move_s: float | None


class AllocationHistory:
    """The allocations of this run and the runs before it. A run without a step has none.

    `now_s` is the time of day: the runs of a job are on different machines.
    """

    name = f"{OWN}allocations"

    def __init__(
        self, *, run_number: int, num_gpus: int, num_nodes: int, now_s: Callable[[], float] = time.time
    ) -> None:
        self._now_s = now_s
        self._last_step_at_s: float | None = None
        self.allocations: list[Allocation] = []
        self.begin_run(run_number=run_number, num_gpus=num_gpus, num_nodes=num_nodes)

    def begin_run(self, *, run_number: int, num_gpus: int, num_nodes: int) -> None:
        """Begin a run, on other GPUs."""
        self._run_number, self._num_gpus, self._num_nodes = run_number, num_gpus, num_nodes
        self._is_begun = False

    def note_step(self, number: int) -> None:
        """Note that step `number` is done, counted from 1 over all runs. May be called twice."""
        now_s = self._now_s()
        if not self._is_begun:
            self._is_begun = True
            before_s = self._last_step_at_s
            self.allocations.append(
                Allocation(
                    run_number=self._run_number,
                    num_gpus=self._num_gpus,
                    num_nodes=self._num_nodes,
                    first_step=number,
                    # Two machines' clocks may differ by more than a short move takes.
                    move_s=None if before_s is None else max(now_s - before_s, 0.0),
                )
            )
        self._last_step_at_s = now_s

    def sync(self) -> None:
        """Nothing to do: every replica knows the same."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "allocations": [asdict(one) for one in self.allocations],
            "last_step_at": self._last_step_at_s,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.allocations = [Allocation(**one) for one in state["allocations"]]
        self._last_step_at_s = state["last_step_at"]
