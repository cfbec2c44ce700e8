"""Recording what ran out of memory, in scripts that catch errors themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pollux_slurm.torch.session.current_session import current_session


@contextmanager
def memory_guard() -> Iterator[None]:
    """Record a local batch whose step runs out of memory, where the script or its framework catches errors.

    Put it around the body of the training loop. The error is raised again, and the job's next start uses
    smaller local batches. Not needed where an error ends the script.

    Examples:
        >>> for inputs, targets in pollux.AdaptiveDataLoader(dataset, batch_size=32):
        ...     with pollux.memory_guard():
        ...         loss_fn(model(inputs), targets).backward()
    """
    try:
        yield
    except Exception as error:
        current_session().memory_watch.note(error)
        raise
