"""The daemon's promises in a simulation, which writes them into its summary."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pollux_slurm.model import Objective, PromiseState
from pollux_slurm.simulator import Cluster, simulate
from pollux_slurm.simulator.policies import PolluxPolicy
from pollux_slurm.simulator.results.summary import make_outcome
from tests.simulator.builders import made_application, made_job


def test_that_promises_are_made_and_counted(tmp_path: Path) -> None:
    # 150 steps of half a second or more, and a restart delay of 30 s.
    jobs = [
        dataclasses.replace(made_job("soon"), finish_by_s=100.0),
        dataclasses.replace(made_job("later"), finish_by_s=2000.0),
        made_job("any"),
    ]
    policy = PolluxPolicy(Objective(name="price-rank"), declared=True)
    result = simulate(jobs, {"made": made_application(tmp_path)}, policy, Cluster(num_nodes=2))
    soon, later, other = result.jobs
    assert (soon.accepted_s, other.accepted_s, other.promise) == (None, None, None)
    assert later.promise is PromiseState.ACCEPTED
    assert later.accepted_s is not None
    summary = make_outcome(result, policy="pollux", objective=None, workload="made", wall_s=0.0).summary
    assert (summary.num_asked, summary.num_accepted, summary.num_kept) == (2, 1, 1)
