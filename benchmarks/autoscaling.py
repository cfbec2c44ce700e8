"""One ImageNet job on a cluster with autoscaling, as in section 5.4 of Pollux (OSDI 2021).

The job trains to its end under rules `slurm` on nodes of four GPUs: on 1, 4, 8 and 16 nodes all the time; on
up to 16 nodes by goodput-based autoscaling; and on up to 16 by throughput-based autoscaling, which ignores
statistical efficiency, also for the batch size. Printed are completion time, node-hours paid for, and the
number of nodes at each tenth of the time.

    POLLUX_TRACES=/path/to/traces python -m benchmarks.autoscaling
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pollux_slurm.model import Objective
from pollux_slurm.simulator import (
    Cluster,
    SimulationResult,
    WorkloadJob,
    read_application,
    simulate,
    slurm_rules,
)
from pollux_slurm.simulator.engine.autoscale import ScalingLimits, UtilityAutoscaler
from pollux_slurm.simulator.policies import PolluxPolicy
from pollux_slurm.simulator.policies.adaptive.agents import Agents

_JOB = WorkloadJob(name="imagenet", submitted_s=0.0, application="imagenet", num_replicas=1, batch_size=200)
_MOST_NODES = 16
_LIMITS = ScalingLimits(boot_s=120.0)


def main() -> None:
    """Print a line for each way to size the cluster."""
    traces = os.environ.get("POLLUX_TRACES")
    if not traces:
        raise SystemExit("POLLUX_TRACES must name the folder with the traces of the applications")
    folder = Path(traces) / "imagenet"
    print(f"{'nodes':<26}{'hours':>7}{'node-hours':>12}{'restarts':>10}   nodes at each tenth")
    for num_nodes in (1, 4, 8, _MOST_NODES):
        show(f"{num_nodes}", run(folder, num_nodes=num_nodes))
    for low, high in ((0.35, 0.65), (0.45, 0.65), (0.55, 0.75)):
        thresholds = f"{low:.0%} to {high:.0%}"
        show(f"goodput, {thresholds}", run(folder, low=low, high=high))
        show(f"throughput, {thresholds}", run(folder, low=low, high=high, by_throughput=True))


def run(
    folder: Path,
    *,
    num_nodes: int = _MOST_NODES,
    low: float | None = None,
    high: float = 1.0,
    by_throughput: bool = False,
) -> SimulationResult:
    """Return the simulation on `num_nodes`, or on up to as many at utilities of `low` to `high`."""
    policy = PolluxPolicy(Objective(), agents=Agents(by_throughput=by_throughput))
    return simulate(
        [_JOB],
        {"imagenet": read_application(folder)},
        policy,
        Cluster(num_nodes=num_nodes),
        rules=slurm_rules(),
        autoscaler=None if low is None else UtilityAutoscaler(policy, low=low, high=high, limits=_LIMITS),
    )


def show(label: str, result: SimulationResult) -> None:
    """Print one line."""
    (job,) = result.jobs
    assert job.finished_s is not None
    nodes: Sequence[int] = [record.nodes_up for record in result.rounds]
    tenths = " ".join(f"{nodes[len(nodes) * tenth // 10]:3}" for tenth in range(10))
    hours = sum(result.node_seconds.values()) / 3600
    print(f"{label:<26}{job.finished_s / 3600:>7.2f}{hours:>12.1f}{job.num_restarts:>10}   {tenths}")


if __name__ == "__main__":
    main()
