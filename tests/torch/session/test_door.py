"""What frameworks and trackers use of a session: a dozen methods, and what says which process this is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pollux_slurm

PACKAGE = Path(pollux_slurm.__file__).parent
IDENTITY = {"rank", "world_size", "run_number", "is_resumed", "is_closed", "checkpoint_dir"}
METHODS = {
    *("epochs.declare", "epochs.begin", "epochs.end", "epochs.leave", "epochs.leave_together"),
    *("epochs.finish", "loops.pause", "loops.checkpoint_point", "regrouping.refuse", "models.is_wrapped"),
    *("next_default_name", "figures", "side_channel.gather", "side_channel.broadcast", "history.note_step"),
}
VALUES = {
    *("num_steps", "models.has_open_step", "loops.outermost", "loops.is_running", "loops.is_padding"),
    *("progress_state", "progress_state.epoch", "progress_state.epoch_key", "progress_state.finished_epochs"),
    *("history.allocations", "checkpointer.unrestored", "stop"),
}


def test_that_frameworks_and_trackers_use_no_more_of_a_session_than_this() -> None:
    used = {
        name
        for folder in ("lightning", "huggingface", "trackers")
        for file in (PACKAGE / folder).glob("*.py")
        for name in _used(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert used == IDENTITY | METHODS | VALUES


def _used(tree: ast.Module) -> Iterator[str]:
    """Yield what is read of `session`, `self._session` and `current_session()`, with the part it is of."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        if _is_session(node.value) and id(node) not in inner:
            yield node.attr
        elif isinstance(node.value, ast.Attribute) and _is_session(node.value.value):
            yield f"{node.value.attr}.{node.attr}"


def _is_session(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "current_session"
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in ("session", "_session")
