"""The one process-wide thing: which session the AdaptDL-compatible functions speak to.

Function names such as `remaining_epochs_until(n)` leave no argument for it. Only this module holds it; tests
set and reset it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.torch.session import Session


class _Holder:
    session: Session | None = None


def current_session() -> Session:
    """Return the session that `init_process_group` made. Raises `UsageError` before that."""
    if _Holder.session is None:
        raise UsageError("call pollux_slurm.torch.init_process_group() before anything else of it")
    return _Holder.session


def has_session() -> bool:
    """Tell whether `init_process_group` was called."""
    return _Holder.session is not None


def set_session(session: Session | None) -> None:
    """Put another session in place, or none."""
    _Holder.session = session
