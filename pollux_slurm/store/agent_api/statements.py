"""What a job's calls do in the tables: `sql/agent_api/statements.sql`, for either database.

SQLite executes the statements one by one (`sqlite_api`); in PostgreSQL they are the body of functions, since
a job's login has no right on any table (`sql/security/functions.sql`).
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pollux_slurm.errors import PolluxError, ReportRefusedError, StaleRunError, UnknownJobError
from pollux_slurm.model import Allocation, JobWarning, PromiseState
from pollux_slurm.store.agent_api.report_message import SAMPLE_COLUMNS
from pollux_slurm.store.contract.interface import MAX_DECLARATIONS, Move, PromiseRecord
from pollux_slurm.store.jobs.goodput_models import MODEL_COLUMNS
from pollux_slurm.store.journal.generations import time_of
from pollux_slurm.store.journal.reallocations import ENDS

# How long after the end of its lease a daemon still counts as alive: clocks of two hosts may differ so much.
DAEMON_GRACE_S = 60.0

UNKNOWN_TOKEN = (
    "no job is registered with this token yet; the daemon registers it from its Slurm Comment in one of its "
    "next rounds"
)

REFUSALS: Mapping[str, type[PolluxError]] = {
    "PX001": UnknownJobError,
    "PX002": StaleRunError,
    "PX003": ReportRefusedError,
}
"""The error that a statement's `code`, which is an SQLSTATE, stands for."""


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of recording a report. Its row, or nulls for none, is kept under its name if `keeps`.

    `part` is a field of the message: without it there is nothing to do.
    """

    statement: str
    part: str | None = None
    keeps: bool = False


RECORDING = (
    Step("write_run"),
    Step("run", keeps=True),
    Step("drop_nodes"),
    Step("write_nodes"),
    Step("write_model", "initial_batch_size"),
    Step("write_sample", "progress"),
    Step("write_declaration", "total_epochs"),
    Step("write_warnings", "warnings"),
    Step("confirmed", "size_bytes", keeps=True),
    Step("confirm", "size_bytes"),
    Step("write_confirmation", "size_bytes"),
    Step("write_checkpoint", "size_bytes"),
)
"""What is done for a report that was admitted, in this order."""

_PREFIXES = {
    "sqlite": {"m": ":", "token": ":token_", "job": ":job_"}
    | {name: f":{name}_" for name in ("admitted", "run", "confirmed")},
    "postgresql": {"m": "m.", "token": "v_token_", "job": "v_job_"}
    | {name: f"{name}." for name in ("admitted", "run", "confirmed")},
}


@functools.cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return the statements by name, for `sqlite` or `postgresql`."""
    from pollux_slurm.store.schema.dialects import rendered_sql  # jinja2: not before the first call of a job

    text = rendered_sql(
        "agent_api/statements.sql",
        dialect,
        **_PREFIXES[dialect],
        unknown_token=UNKNOWN_TOKEN,
        model_columns=MODEL_COLUMNS,
        sample_columns=SAMPLE_COLUMNS,
        max_declarations=MAX_DECLARATIONS,
        warnings=[warning.value for warning in JobWarning],
        ends=", ".join(f"'{step.value}'" for step in ENDS),
        grace_s=DAEMON_GRACE_S,
    )
    _, *parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    without_comments = (re.sub(r"^--.*\n", "", part, flags=re.MULTILINE).strip() for part in parts[1::2])
    return dict(zip(parts[::2], without_comments, strict=True))


def move_of(rows: Sequence[Any]) -> Move | None:
    """Return the move of which each of `rows` has the reason, and a side, node and number of GPUs if any."""
    if not rows:
        return None
    sides: dict[str | None, dict[str, int]] = defaultdict(dict)
    for _, side, node_name, num_gpus in rows:
        sides[side][node_name] = num_gpus
    source, target = (Allocation.of(sides[side]) for side in ("source", "target"))
    return Move(source=source, target=target, reason=rows[0][0])


def promise_of(rows: Sequence[Any]) -> PromiseRecord | None:
    """Return the answer that a row of the statement `promise` has; None for no answer yet."""
    ((state, least_gpus, finish_at, reason),) = rows
    if state is None:
        return None
    return PromiseRecord(
        state=PromiseState(state),
        least_gpus=least_gpus,
        finish_at=None if finish_at is None else time_of(finish_at),
        reason=reason,
    )
