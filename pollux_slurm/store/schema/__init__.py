"""Tables, triggers and views. One schema for SQLite and PostgreSQL.

May be imported by `cli`, `store/access`, `store/agent_api`, `store/jobs`, `store/journal`,
`store/maintenance`, `store/reporting`, `store/rounds`, `store/security`.
"""

from __future__ import annotations

from pollux_slurm.store.schema.base import LAST_VIEW, REVISIONS, VERSION_TABLE, Base, UtcDateTime
from pollux_slurm.store.schema.daemon import (
    AllocationNodeRow,
    AllocationRow,
    DecisionNodeRow,
    DecisionRow,
    GpuPriceRow,
    LeaseRow,
    ReallocationNodeRow,
    ReallocationRow,
    ReallocationStepRow,
    RoundRow,
)
from pollux_slurm.store.schema.jobs import (
    AccountRow,
    CheckpointRow,
    DeclarationRow,
    JobRow,
    ModelVersionRow,
    RunNodeRow,
    RunRow,
    RunWarningRow,
    SampleRow,
    UserRow,
)
from pollux_slurm.store.schema.membership import GenerationMemberRow, GenerationRow
from pollux_slurm.store.schema.usage import AllocationDayRow, JobDayRow, NodeDayRow, NodeRow, RunDayRow

__all__ = [
    "LAST_VIEW",
    "REVISIONS",
    "VERSION_TABLE",
    "AccountRow",
    "AllocationDayRow",
    "AllocationNodeRow",
    "AllocationRow",
    "Base",
    "CheckpointRow",
    "DecisionNodeRow",
    "DecisionRow",
    "DeclarationRow",
    "GenerationMemberRow",
    "GenerationRow",
    "GpuPriceRow",
    "JobDayRow",
    "JobRow",
    "LeaseRow",
    "ModelVersionRow",
    "NodeDayRow",
    "NodeRow",
    "ReallocationNodeRow",
    "ReallocationRow",
    "ReallocationStepRow",
    "RoundRow",
    "RunDayRow",
    "RunNodeRow",
    "RunRow",
    "RunWarningRow",
    "SampleRow",
    "UserRow",
    "UtcDateTime",
]
