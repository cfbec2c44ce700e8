"""Epochs that continue over restarts, and functions that return the present epoch and loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from pollux_slurm.torch.data.loop_exit import is_left_by_break
from pollux_slurm.torch.session.current_session import current_session

if TYPE_CHECKING:
    from pollux_slurm.torch.api.data_loader import AdaptiveDataLoader


def remaining_epochs_until(num_epochs: int) -> Iterator[int]:
    """Yield the epochs from the one under way to `num_epochs` − 1; after the last, write a final checkpoint.

    After a restart the epoch that was under way is yielded again: its adaptive loaders go on at their exact
    position, and the code after them runs as it would have. One call after another continues the count.

    Leaving the loop by `break` writes the final checkpoint, too (Python 3.11 and later). That epoch stays
    unfinished: a restart comes to it again, and to the same `break`.

    Args:
        num_epochs: The total number of epochs, those of earlier runs included.

    Examples:
        >>> for epoch in pollux.remaining_epochs_until(2):
        ...     print(epoch, pollux.finished_epochs())
        0 0
        1 1
    """
    session = current_session()
    session.epochs.declare(num_epochs)
    while session.progress_state.finished_epochs < num_epochs:
        session.epochs.begin()
        try:
            yield session.progress_state.finished_epochs
        except GeneratorExit:
            if not session.is_closed:
                session.epochs.leave(by_break=is_left_by_break())
            raise
        session.epochs.end()
    session.epochs.finish()


def on_regroup(callback: Callable[[int, int], object]) -> None:
    """Call a function each time that replicas have joined or left, before the next step.

    It is also called in a process that has just joined. Nothing happens in a job whose replicas do not change
    while it trains.

    Args:
        callback: Called with this process's rank and the world size. It may set variables anew that depend on
            either.

    Examples:
        >>> def set_share(rank, world_size):
        ...     global share
        ...     share = 1 / world_size
        >>> pollux.on_regroup(set_share)
    """
    current_session().regrouping.callbacks.append(callback)


def is_joining() -> bool:
    """Return whether this process is to join a training under way, and prepares for it.

    The other replicas do not run the code before the training loop: it must not communicate here.

    Examples:
        >>> if not pollux.is_joining():
        ...     torch.distributed.barrier()  # the others are not here when a process joins
    """
    return current_session().regrouping.is_joining


def checkpoint_point() -> None:
    """Allow a checkpoint here: in long-running code between adaptive loops.

    Call it in a validation over an ordinary `DataLoader`, after each batch. A checkpoint request or SIGTERM
    is then answered within a batch or two. Each replica must call it equally often. After a restart such code
    runs again, from the end of the adaptive loop before it. Inside of an adaptive loop it does nothing.

    Examples:
        >>> for inputs, targets in torch.utils.data.DataLoader(dataset, batch_size=32):
        ...     outputs = model(inputs)
        ...     pollux.checkpoint_point()
    """
    current_session().loops.checkpoint_point()


def current_dataloader() -> AdaptiveDataLoader | None:
    """Return the loader of the (outermost) adaptive loop under way, None outside of one.

    Examples:
        >>> loader = pollux.AdaptiveDataLoader(dataset, batch_size=32)
        >>> [pollux.current_dataloader() is loader for batch in loader]
        [True, True]
    """
    return cast("AdaptiveDataLoader | None", current_session().loops.outermost)


def current_epoch() -> int | None:
    """Return the epoch under way, None outside of `remaining_epochs_until`.

    Examples:
        >>> [pollux.current_epoch() for epoch in pollux.remaining_epochs_until(2)]
        [0, 1]
    """
    return current_session().progress_state.epoch


def finished_epochs() -> int:
    """Return how many epochs were finished, earlier runs included.

    Examples:
        >>> for epoch in pollux.remaining_epochs_until(3):
        ...     pass
        >>> pollux.finished_epochs()
        3
    """
    return current_session().progress_state.finished_epochs


def finished_steps() -> int:
    """Return how many optimizer steps were made, earlier runs included; each counts from its `step()` on.

    Examples:
        >>> model = pollux.AdaptiveDataParallel(model, optimizer)
        >>> for inputs, targets in pollux.AdaptiveDataLoader(dataset, batch_size=32):
        ...     loss_fn(model(inputs), targets).backward()
        ...     optimizer.step()
        >>> pollux.finished_steps()
        2
    """
    return current_session().num_steps
