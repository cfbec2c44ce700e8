"""The interface of a loader that a session uses. `AdaptiveDataLoader` implements it."""

from __future__ import annotations

from typing import Protocol

from pollux_slurm.model import BatchChoice, BatchLimits
from pollux_slurm.torch.data.sampling_order import SamplingOrder


class Loader(Protocol):
    """A loader whose loops the session drives. Sizes and positions are in examples."""

    @property
    def name(self) -> str: ...

    @property
    def name_across_epochs(self) -> str: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def drop_last(self) -> bool: ...

    @property
    def limits(self) -> BatchLimits: ...

    @property
    def own_limits(self) -> BatchLimits: ...

    @property
    def choice(self) -> BatchChoice: ...

    @property
    def schedule_steps(self) -> int: ...

    @property
    def groups_micro_batches(self) -> bool:
        """True where whoever iterates knows which micro-batches are one step, and steps once for them."""

    @property
    def order(self) -> SamplingOrder | None: ...

    @property
    def loop_number(self) -> int: ...

    @property
    def num_examples_done(self) -> int: ...

    @property
    def current_micro_batch_size(self) -> int | None: ...

    @property
    def current_share(self) -> float: ...

    @property
    def is_padding(self) -> bool: ...

    @property
    def may_split(self) -> bool: ...

    @property
    def position_and_length(self) -> tuple[int, int | None]: ...

    def choose(self, choice: BatchChoice) -> bool:
        """Use a batch choice from the next step on; return whether it differs from the one in use."""

    def fix_batch_size(self) -> None:
        """Fix the batch size at the one that the script gave."""

    def end_iteration(self, reason: str) -> None:
        """End the loop under way; whoever still has its iterator gets `reason` as a `UsageError`."""
