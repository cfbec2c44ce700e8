"""The session of this process, for public functions that take no session as an argument.

AdaptDL's signatures, such as `remaining_epochs_until(n)`, leave no place for it. This module has the only
process-wide variable; tests set and reset it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.torch.session.session import Session


class _Current:
    session: Session | None = None
    # Callbacks of objects that were made before the session.
    waiting: ClassVar[list[Callable[[Session], None]]] = []


def current_session() -> Session:
    """Return the session that `init_process_group` made. Raises `UsageError` before that."""
    if _Current.session is None:
        raise UsageError(
            "call pollux_slurm.torch.init_process_group() first: only AdaptiveDataLoaders may be made earlier"
        )
    return _Current.session


def has_session() -> bool:
    """Return whether `init_process_group` was called."""
    return _Current.session is not None


def set_session(session: Session | None) -> None:
    """Set the session (None: remove it), and call back whoever waited for it."""
    _Current.session = session
    waiting, _Current.waiting = _Current.waiting, []
    if session is not None:
        for join in waiting:
            join(session)


def join_session(join: Callable[[Session], None]) -> None:
    """Call `join` with the session: now, or when `init_process_group` makes it, in the order of the calls."""
    if _Current.session is None:
        _Current.waiting.append(join)
    else:
        join(_Current.session)
