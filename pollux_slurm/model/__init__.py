"""The frozen types that cross layers. No I/O, no formulas beyond one-line properties.

May be imported by `agent`, `cli`, `daemon`, `goodput`, `huggingface`, `launch`, `now`, `policy`, `report`,
`simulator`, `slurm`, `store`, `torch`.

Six files: allocations; wings of jobs that move in place; one job's goodput model; nodes and jobs of Slurm;
the scheduling problem and its decision; warnings of jobs. Types that only the store and its users exchange
are in `pollux_slurm.store.contract`.
"""

from pollux_slurm.model.allocations import (
    Allocation,
    Configuration,
)
from pollux_slurm.model.cluster import (
    PLACED_WITHIN_S,
    AccountedRun,
    ClusterSnapshot,
    JobShape,
    JobState,
    JobTerms,
    SlurmJob,
    SlurmNode,
)
from pollux_slurm.model.goodput import (
    BatchChoice,
    BatchLimits,
    GoodputModel,
    GradientStatistics,
    ThroughputParameters,
    TrainingCourse,
)
from pollux_slurm.model.problem import (
    Decision,
    GpuLimit,
    JobDecision,
    MovingRules,
    NodeCapacity,
    Objective,
    Problem,
    ProblemJob,
    Promise,
    PromiseState,
    ReallocationCause,
    ReallocationStep,
    ReallocationWay,
    RefusedConfiguration,
    SlurmAnswer,
)
from pollux_slurm.model.warnings import JobWarning
from pollux_slurm.model.wings import WingChanges, wing_changes

__all__ = [
    "PLACED_WITHIN_S",
    "AccountedRun",
    "Allocation",
    "BatchChoice",
    "BatchLimits",
    "ClusterSnapshot",
    "Configuration",
    "Decision",
    "GoodputModel",
    "GpuLimit",
    "GradientStatistics",
    "JobDecision",
    "JobShape",
    "JobState",
    "JobTerms",
    "JobWarning",
    "MovingRules",
    "NodeCapacity",
    "Objective",
    "Problem",
    "ProblemJob",
    "Promise",
    "PromiseState",
    "ReallocationCause",
    "ReallocationStep",
    "ReallocationWay",
    "RefusedConfiguration",
    "SlurmAnswer",
    "SlurmJob",
    "SlurmNode",
    "ThroughputParameters",
    "TrainingCourse",
    "WingChanges",
    "wing_changes",
]
