"""What is lent, and to whom it goes."""

from __future__ import annotations

import dataclasses

from pollux_slurm.daemon.decide.lent_gpus import keep_submitted_shapes
from pollux_slurm.model import Allocation, NodeCapacity, Problem, ProblemJob
from pollux_slurm.policy import decide
from tests.daemon.builders import MODEL

NODE = NodeCapacity(name="n0", num_gpus=4, num_cpus=8, memory_mb=8000)
HAS_TWO = Allocation.of({"n0": 2})
# Two of one user fill the node, as submitted; another user's is new.
FULL = tuple(
    ProblemJob(job_id=one, user="ann", model=MODEL, current=HAS_TWO, age_s=1e6) for one in ("1", "2")
)
NEW = ProblemJob(job_id="7", user="bob", model=MODEL, waiting_s=600.0)
SUBMITTED = {"1": 2, "2": 2, "7": 1}


def gets(*jobs: ProblemJob, behind: tuple[str, ...] = ()) -> list[int]:
    """Return the GPUs that a round gives to each of these jobs."""
    problem = keep_submitted_shapes(Problem(nodes=(NODE,), jobs=jobs), decide, SUBMITTED, behind)
    decision = decide(problem)
    return [decision.allocation(job.job_id).num_gpus for job in jobs]


def test_that_a_newcomer_gets_a_share_of_what_others_submitted_but_not_before_a_rigid_job() -> None:
    """Else newcomers fill the cluster, and the rigid job before them waits for all their ends."""
    assert sum(gets(*FULL, NEW)[:2]) == 3
    assert gets(*FULL, NEW, behind=("7",)) == [2, 2, 0]


def test_that_a_newcomer_behind_a_rigid_job_gets_what_is_lent() -> None:
    grown = dataclasses.replace(FULL[0], current=Allocation.of({"n0": 4}))
    assert gets(grown, NEW, behind=("7",)) == [2, 2]
    # A rigid job that takes part in the round as well.
    rigid = ProblemJob(job_id="9", min_gpus=1, max_gpus=1, rigid=True, waiting_s=60.0)
    assert gets(grown, NEW, rigid, behind=("7",)) == [2, 1, 1]
