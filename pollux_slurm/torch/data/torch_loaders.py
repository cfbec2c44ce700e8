"""What a `torch.utils.data.DataLoader` was made with: frameworks make adaptive loaders of users' own."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler


def loader_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the options that do not say which examples a batch has."""
    names = ["num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator"]
    if loader.num_workers > 0:
        names += ["multiprocessing_context", "prefetch_factor", "persistent_workers"]
    options = {name: getattr(loader, name) for name in names}
    options["in_order"] = getattr(loader, "in_order", True)
    if getattr(loader, "pin_memory_device", ""):
        options["pin_memory_device"] = loader.pin_memory_device
    return options


def has_own_batches(loader: DataLoader[Any]) -> bool:
    """Return whether the loader has a batch sampler of the user's own."""
    return loader.batch_size is None and loader.batch_sampler is not None


def given_seed(loader: DataLoader[Any]) -> int | None:
    """Return the seed of the generator that the script gave, the same after every restart."""
    for generator in (getattr(loader.sampler, "generator", None), loader.generator):
        if isinstance(generator, torch.Generator):
            return generator.initial_seed()
    return None


def order_arguments(loader: DataLoader[Any], *, seed: int) -> dict[str, Any]:
    """Return the arguments of an `AdaptiveDataLoader` that visits the examples in the loader's order.

    A shuffled order is another one, by `seed`.
    """
    if isinstance(loader.dataset, IterableDataset):
        return {}
    sampler: Any = loader.sampler
    if type(sampler) is SequentialSampler:
        return {}
    if type(sampler) is RandomSampler and not sampler.replacement:
        is_whole = sampler.num_samples == len(sampler.data_source)
        if is_whole:
            return {"shuffle": True, "seed": seed}
    return {"sampler": sampler, "seed": seed}
