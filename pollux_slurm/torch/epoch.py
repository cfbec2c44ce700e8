"""Epochs that survive restarts."""

from __future__ import annotations

from collections.abc import Iterator

from pollux_slurm.torch.current import current_session


def remaining_epochs_until(num_epochs: int) -> Iterator[int]:
    """Yield the epochs from the one under way to `num_epochs` − 1; after the last, write a final checkpoint.

    After a restart the epoch that was under way is yielded again: its adaptive loaders go on at their exact
    position, and the code after them runs as it would have. One call after another continues the count.
    """
    session = current_session()
    session.declare_epochs(num_epochs)
    while session.finished_epochs < num_epochs:
        session.begin_epoch()
        yield session.finished_epochs
        session.end_epoch()
    session.finish()


def current_epoch() -> int | None:
    """Return the epoch under way, None outside of `remaining_epochs_until`."""
    return current_session().current_epoch


def finished_epochs() -> int:
    """Return how many epochs were finished, earlier runs included."""
    return current_session().finished_epochs
