"""Configurations that pack well."""

from __future__ import annotations

from pollux_slurm.policy.objectives.packing_preference import packing_columns
from pollux_slurm.policy.problem.speedup_tables import build_tables
from tests.policy.builders import job, nodes, problem


def test_that_only_shares_that_pack_and_the_jobs_own_bounds_are_allowed() -> None:
    jobs = [job("any"), job("three", min_gpus=3, max_gpus=3), job("to-six", max_gpus=6)]
    cluster = nodes(4, 4)
    tables = build_tables(jobs, cluster, fair_share_gpus=1)
    usable = packing_columns(problem(cluster, *jobs), jobs, tables)
    shapes = list(zip(tables.num_nodes.tolist(), tables.per_node.tolist(), strict=True))
    allowed = [[shape for shape, used in zip(shapes, row, strict=True) if used] for row in usable.tolist()]
    whole = [shape for shape in shapes if shape[0] > 1 and shape[1] == 4]
    assert allowed[0] == [(1, 1), (1, 2), (1, 4), *whole]
    assert (1, 3) in allowed[1]
    assert (2, 3) in allowed[2]
    assert (1, 3) not in allowed[2]
