"""The bounds of reports: of every number, by its field, and of how many and how large they are.

Tables and clients check numbers with them.

A malicious job can lie about itself, and only its own decisions suffer. What the bounds keep out is what
would hurt others: numbers that no arithmetic survives (NaN, infinity, 10³⁰⁰, 10⁻³⁰⁰) or that no column holds.
Each is far beyond any real job. Those of a goodput model stand in `goodput.checks`.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_ID = 2**63 - 1
# No step is shorter; one example in the longest of all steps; one example of the largest batch.
_MIN_DURATION_S = 1e-6
_MIN_RATE = 1e-7
_MIN_EFFICIENCY = 1e-9
_MAX_DURATION_S = 1e7
_MAX_RATE = 1e12
_MAX_BATCH_SIZE = 10**9

BOUNDS: Mapping[str, tuple[float, float]] = {
    "run_number": (0, 10**6),
    "restart_count": (0, 10**6),
    "sequence": (0, 10**12),
    "num_gpus": (1, 1024),
    "node_rank": (0, 10**4 - 1),
    "global_batch_size": (1, _MAX_BATCH_SIZE),
    "atomic_batch_size": (1, _MAX_BATCH_SIZE),
    "accumulation_steps": (0, _MAX_BATCH_SIZE),
    "throughput": (_MIN_RATE, _MAX_RATE),
    "predicted_throughput": (_MIN_RATE, _MAX_RATE),
    "step_time_s": (_MIN_DURATION_S, _MAX_DURATION_S),
    "efficiency": (_MIN_EFFICIENCY, 1.0),
    "num_steps": (0, 10**15),
    "num_examples": (0, 10**15),
    "progress": (0.0, 1e18),
    "epoch": (0, 10**9),
    "total_epochs": (0, 10**9),
    "first_step_s": (_MIN_DURATION_S, _MAX_DURATION_S),
    "restore_s": (0.0, _MAX_DURATION_S),
    "blocked_s": (0.0, _MAX_DURATION_S),
    "size_bytes": (0, 2**60),
    "request_id": (0, MAX_ID),
    "generation": (1, 10**6),
    "member_rank": (0, 10**4 - 1),
    "standstill_s": (0.0, _MAX_DURATION_S),
}
"""The least and the most; whole numbers where a field takes only these."""

# Reports of ordinary size that a job may send at once, and each second, on PostgreSQL.
BURST_REPORTS = 120
REPORTS_PER_S = 1
# Of all jobs of a user together, but for each at least what one that reports every ten seconds takes.
USERS_BURST_REPORTS = 1200
USERS_REPORTS_PER_S = 10
LEAST_BURST_REPORTS = 10
LEAST_REPORTS_PER_S = 0.1
ORDINARY_BYTES = 2048
MAX_REPORT_BYTES = 65536
