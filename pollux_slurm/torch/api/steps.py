"""Training by steps: a loop that counts optimizer steps, over as many epochs as they take.

Each pass over the loader is an epoch, as in `remaining_epochs_until`: with its own order, and an end at which
replicas may join. The loop's body runs between two boundaries. So a checkpoint never stands in the middle of
it, and a body that ran once does not run again after a restart.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.api.data_loader import AdaptiveDataLoader
from pollux_slurm.torch.data.batch_iterator import BatchIterator
from pollux_slurm.torch.data.loop_exit import is_left_by_break
from pollux_slurm.torch.session.current_session import current_session

if TYPE_CHECKING:
    from pollux_slurm.torch.session.session import Session

_END = object()
_NO_STEPS = (
    "remaining_steps_until(...) has gone over all data of {loader!r} without one step of an optimizer that "
    "AdaptiveDataParallel was given: call optimizer.step() in the loop's body. If the data is empty, or less "
    "than one batch with drop_last=True, give more of it"
)


def remaining_steps_until(num_steps: int, loader: AdaptiveDataLoader) -> Iterator[tuple[int, Iterator[Any]]]:
    """Yield each step still to do, with its batches; after step `num_steps` − 1, write a final checkpoint.

    For scripts without epochs. A step's number is `finished_steps()`. Its batches are this replica's parts of
    one global batch: a single one, or several where the loader splits it. Train on each, then step.

    It begins `loader` anew whenever its data ends. After a restart the loop goes on with the next step, at
    the exact position in the data; what the body did in earlier steps is not done again. A step that the body
    leaves by `continue` before `optimizer.step()` uses up its batches, and does not count.

    Leaving the loop by `break` writes the final checkpoint, too (Python 3.11 and later). A restart then goes
    on with the next step.

    Args:
        num_steps: The total number of optimizer steps, those of earlier runs included.
        loader: What yields the batches.

    Raises:
        UsageError: `loader` is of another class, or the optimizer makes no step in a whole pass over it.

    Examples:
        >>> model = pollux.AdaptiveDataParallel(model, optimizer)
        >>> loader = pollux.AdaptiveDataLoader(dataset, batch_size=32, shuffle=True)
        >>> for step, batches in pollux.remaining_steps_until(5, loader):
        ...     for inputs, targets in batches:
        ...         loss_fn(model(inputs), targets).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> step
        4
    """
    if not isinstance(loader, AdaptiveDataLoader):
        raise UsageError(
            f"remaining_steps_until(...) needs an AdaptiveDataLoader, not {type(loader).__name__}"
        )
    session = current_session()
    session.regrouping.join_training()
    try:
        yield from _steps(session, num_steps, loader)
    except BaseException as error:
        if not session.is_closed:
            session.epochs.leave(by_break=isinstance(error, GeneratorExit) and is_left_by_break())
        raise
    session.epochs.finish()


def _steps(
    session: Session, num_steps: int, loader: AdaptiveDataLoader
) -> Iterator[tuple[int, Iterator[Any]]]:
    num_idle = 0
    while session.num_steps < num_steps:
        session.epochs.begin()
        before, batches = session.num_steps, loader.iterate_steps(goes_on=True)
        first: Any = None
        while session.num_steps < num_steps and (first := next(batches, _END)) is not _END:
            of_step = _batches_of_step(loader, batches, first)
            yield session.num_steps, of_step
            of_step.close()
            # What the body left of this step, then its boundary, where None comes.
            for _ in iter(functools.partial(next, batches, None), None):
                pass
        if first is not _END:
            batches.end("the training ended")
            return
        # A pass that had ended before a restart has no step here.
        num_idle = num_idle + 1 if session.num_steps == before else 0
        if num_idle > 1:
            raise UsageError(_NO_STEPS.format(loader=loader))
        session.epochs.end()


def _batches_of_step(
    loader: AdaptiveDataLoader, batches: BatchIterator, batch: Any
) -> Generator[Any, None, None]:
    """Yield the batches of the step that `batch` begins, without crossing the boundary after it."""
    while True:
        is_last = loader.is_stepping
        yield batch
        if is_last:
            return
        batch = next(batches, None)
