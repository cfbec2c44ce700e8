"""The multi-node cap: a bound on SPEEDUP over several nodes for jobs that never ran on several.

Until then, the fitted model assumes that the network is hardly slower than a node's own links (Pollux,
section 4.1: no synchronisation cost before evidence). Without the cap, such a job seems to make up for any
pause on more nodes later, and takes several nodes from jobs that use them better.
Legend: J jobs, C columns of the tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import ProblemJob
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

FloatArray = npt.NDArray[np.float64]

# The exponent with which SPEEDUP grows with GPUs beyond one node, at most: chosen on generated workloads
# (docs/evaluation.md).
_MAX_EXPONENT = 0.5


def capped_speedup(jobs: Sequence[ProblemJob], tables: SpeedupTables) -> FloatArray:
    """Return SPEEDUP, (J, C), capped on several nodes for jobs that never ran on several.

    With s the largest SPEEDUP on one node of a GPU type, at k GPUs, SPEEDUP of K GPUs on several nodes is at
    most s·√(K/k). It stays as it is for a job without a model and for one that fits on no single node.
    """
    capped = np.array([_ran_on_one_node_only(job) for job in jobs], dtype=bool)
    if not capped.any() or not (tables.num_nodes > 1).any():
        return tables.speedup
    speedup: FloatArray = tables.speedup.copy()
    for kind in range(len(tables.kinds)):
        of_kind = tables.kind == kind
        one = np.flatnonzero(of_kind & (tables.num_nodes == 1))
        several = np.flatnonzero(of_kind & (tables.num_nodes > 1))
        rows = np.flatnonzero(capped & (tables.rows[:, kind] >= 0))
        if not (len(one) and len(several) and len(rows)):
            continue
        on_one = speedup[rows[:, None], one]
        gpus = tables.num_gpus[one][on_one.argmax(axis=1)]
        most = on_one.max(axis=1)
        bound = most[:, None] * (tables.num_gpus[several] / gpus[:, None]) ** _MAX_EXPONENT
        bound[most <= 0] = np.inf
        speedup[rows[:, None], several] = np.minimum(speedup[rows[:, None], several], bound)
    return speedup


def _ran_on_one_node_only(job: ProblemJob) -> bool:
    models = [model for model in (job.model, *[model for _, model in job.models]) if model is not None]
    return bool(models) and all(model.max_nodes_seen <= 1 for model in models)
