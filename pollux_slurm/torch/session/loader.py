"""What a session asks of a loader. `AdaptiveDataLoader`, above, is one."""

from __future__ import annotations

from typing import Protocol

from pollux_slurm.model import BatchChoice, BatchLimits
from pollux_slurm.torch.data.sampling_order import Order


class Loader(Protocol):
    """A loader whose loops the session follows. Sizes and positions are examples."""

    @property
    def name(self) -> str: ...

    @property
    def memory_name(self) -> str: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def drop_last(self) -> bool: ...

    @property
    def limits(self) -> BatchLimits: ...

    @property
    def choice(self) -> BatchChoice: ...

    @property
    def current_batch_size(self) -> int: ...

    @property
    def accumulation_steps(self) -> int: ...

    @property
    def schedule_steps(self) -> int: ...

    @property
    def order(self) -> Order | None: ...

    @property
    def loop_number(self) -> int: ...

    @property
    def num_examples_done(self) -> int: ...

    @property
    def size_under_way(self) -> int | None: ...

    @property
    def is_padding(self) -> bool: ...

    @property
    def standing(self) -> tuple[int, int | None]: ...

    def choose(self, choice: BatchChoice) -> bool:
        """Use another batch from the next step on; return whether it is another."""

    def hold_batch_size(self) -> None:
        """Keep the batch size as the script gave it."""

    def let_go(self, reason: str) -> None:
        """Leave the loop under way."""
