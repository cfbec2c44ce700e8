"""The one process-wide thing: which session the AdaptDL-compatible functions speak to.

Function names such as `remaining_epochs_until(n)` leave no argument for it. Only this module holds it; tests
set and reset it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.torch.session.session import Session


class _Holder:
    session: Session | None = None
    # What was made before there is one.
    waiting: ClassVar[list[Callable[[Session], None]]] = []


def current_session() -> Session:
    """Return the session that `init_process_group` made. Raises `UsageError` before that."""
    if _Holder.session is None:
        raise UsageError(
            "call pollux_slurm.torch.init_process_group() first: only AdaptiveDataLoaders may be made earlier"
        )
    return _Holder.session


def has_session() -> bool:
    """Tell whether `init_process_group` was called."""
    return _Holder.session is not None


def set_session(session: Session | None) -> None:
    """Put another session in place, or none."""
    _Holder.session = session
    waiting, _Holder.waiting = _Holder.waiting, []
    if session is not None:
        for join in waiting:
            join(session)


def join_session(join: Callable[[Session], None]) -> None:
    """Call `join` with the session: now, or when `init_process_group` makes it, in the order of the calls."""
    if _Holder.session is None:
        _Holder.waiting.append(join)
    else:
        join(_Holder.session)
