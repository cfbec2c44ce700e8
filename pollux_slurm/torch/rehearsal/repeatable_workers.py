"""Let the random numbers of worker processes depend on the example alone, and see whether they are drawn.

A worker begins with other random numbers after a restart, and gets other examples with another number of
replicas. So the generators are seeded before each example, and before the examples become a batch.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch as torch_fetch

from pollux_slurm.torch.rehearsal.random_states import generators_in, read_states, seed_generators
from pollux_slurm.torch.wrapped_model.patching import patch_everywhere

WORKERS_DREW = "workers-drew"
"""The file that a worker makes, in the run's folder, when its part of the script draws random numbers."""

_NUM_EXAMINED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatableWorker:
    """A `worker_init_fn` that also calls the loader's own (`init`). A class, because it is pickled."""

    folder: Path
    init: Callable[[int], object] | None

    def __call__(self, worker_id: int) -> None:
        if self.init is not None:
            self.init(worker_id)
        watched = _WorkerDraws(self.folder)
        patch_everywhere(torch_fetch._MapDatasetFetcher, "fetch", watched.fetch_by_index)
        patch_everywhere(torch_fetch._IterableDatasetFetcher, "fetch", watched.fetch_next)


class _WorkerDraws:
    """Wraps what a worker does for each batch."""

    def __init__(self, folder: Path) -> None:
        self._file, self._num_examined = folder / WORKERS_DREW, Counter[str]()
        info = get_worker_info()
        assert info is not None
        self._seed, self._roots = info.seed - info.id, [("dataset", info.dataset)]
        self._own = list(generators_in(self._roots).values())

    def fetch_by_index(self, original: Callable[..., Any], wanted: Any) -> Any:
        fetcher = original.args[0]  # type: ignore[attr-defined]
        if not fetcher.auto_collation:
            return self._seeded("batch", wanted, lambda: original(wanted))
        dataset = fetcher.dataset
        if getattr(dataset, "__getitems__", None):
            examples = self._seeded("batch", wanted, lambda: dataset.__getitems__(wanted))
        else:
            examples = [
                self._seeded("example", index, partial(dataset.__getitem__, index)) for index in wanted
            ]
        return self._seeded("collate", wanted, lambda: fetcher.collate_fn(examples))

    def fetch_next(self, original: Callable[..., Any], wanted: Any) -> Any:
        return self._watched("batch", lambda: original(wanted))

    def _seeded(self, part: str, what: Any, call: Callable[[], Any]) -> Any:
        seed_generators((self._seed + zlib.crc32(repr(what).encode())) % 2**32, self._own)
        return self._watched(part, call)

    def _watched(self, part: str, call: Callable[[], Any]) -> Any:
        """Call it; note whether it draws, the first times of each part."""
        self._num_examined[part] += 1
        if self._num_examined[part] > _NUM_EXAMINED:
            return call()
        before = read_states(self._roots)
        result = call()
        after = read_states(self._roots)
        if any(before.get(name, state) != state for name, state in after.items()):
            self._file.touch()
        return result
