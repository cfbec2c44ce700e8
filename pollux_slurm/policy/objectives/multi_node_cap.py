"""What several nodes may bring a job that was never on several, where its model cannot know it yet.

Until then a fit takes the network for hardly slower than a node's own links (Pollux, section 4.1: no
synchronisation cost before evidence). A job that was measured on one node then looks as if it could make up
for any pause on more nodes, and others give way to it where it grows to several.
Legend: J jobs, C columns of the tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import ProblemJob
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

FloatArray = npt.NDArray[np.float64]

# The most by which a job grows beyond one node, as a power of its GPUs: chosen on generated workloads
# (docs/evaluation.md).
_BEYOND_ONE_NODE = 0.5


def capped_speedup(jobs: Sequence[ProblemJob], tables: SpeedupTables) -> FloatArray:
    """Return SPEEDUP, (J, C), bounded on several nodes for jobs that were never on several.

    With s the most that one node of a GPU type brings, at k GPUs, K GPUs on several of them count as
    s·√(K/k) at most. A job without a model, and one that no single node can serve, are left as they are.
    """
    cautious = np.array([_was_on_one_node_only(job) for job in jobs], dtype=bool)
    if not cautious.any() or not (tables.num_nodes > 1).any():
        return tables.speedup
    speedup: FloatArray = tables.speedup.copy()
    for kind in range(len(tables.kinds)):
        of_kind = tables.kind == kind
        one = np.flatnonzero(of_kind & (tables.num_nodes == 1))
        several = np.flatnonzero(of_kind & (tables.num_nodes > 1))
        rows = np.flatnonzero(cautious & (tables.rows[:, kind] >= 0))
        if not (len(one) and len(several) and len(rows)):
            continue
        on_one = speedup[rows[:, None], one]
        gpus = tables.num_gpus[one][on_one.argmax(axis=1)]
        most = on_one.max(axis=1)
        bound = most[:, None] * (tables.num_gpus[several] / gpus[:, None]) ** _BEYOND_ONE_NODE
        bound[most <= 0] = np.inf
        speedup[rows[:, None], several] = np.minimum(speedup[rows[:, None], several], bound)
    return speedup


def _was_on_one_node_only(job: ProblemJob) -> bool:
    models = [model for model in (job.model, *[model for _, model in job.models]) if model is not None]
    return bool(models) and all(model.max_nodes_seen <= 1 for model in models)
