"""What of a request keeps a job from ever being moved, said at its submission.

The job trains all the same, in the shape that it starts with. The rules are those by which the daemon reads a
job's request from Slurm.
"""

from __future__ import annotations

from pollux_slurm.slurm.parsing.job_json import request_problem
from pollux_slurm.slurm.parsing.node_constraints import expand_hosts
from pollux_slurm.slurm.sbatch.request import SbatchRequest

_OF_GPUS = {
    "gpus": "tres_per_job",
    "gpus-per-node": "tres_per_node",
    "gpus-per-task": "tres_per_task",
    "gpus-per-socket": "tres_per_socket",
}
_OF_NODES = {"constraint": "features", "exclude": "excluded_nodes", "reservation": "resv_name"}


def never_moved_because(request: SbatchRequest) -> str | None:
    """Return why no daemon can move the job; None where one may."""
    shown: dict[str, object] = {"contiguous": request.given("contiguous")}
    for name, key in _OF_NODES.items():
        shown[key] = request.value(name) or ""
    for name, key in _OF_GPUS.items():
        # As Slurm shows it: `--gpus=a100:2,t4:1` is `gres:gpu:a100:2,gres:gpu:t4:1`.
        items = [item for item in (request.value(name) or "").split(",") if item]
        shown[key] = ",".join(f"gres:gpu:{item}" for item in items)
    for name, key in (("gres", "tres_per_node"), ("tres-per-task", "tres_per_task")):
        if value := request.value(name):
            shown[key] = ",".join(filter(None, [str(shown[key]), value]))
    if request.given("nodefile"):
        return "its owner asks for nodes by name (--nodefile)"
    return request_problem(shown) or _nodes_by_name(request.value("nodelist") or "")


def one_node_because(request: SbatchRequest) -> str | None:
    """Return why the daemon gives the job GPUs of one node only; None where it may give several."""
    if request.given("contiguous"):
        return f"{request.source_of('contiguous')} cannot be kept over several nodes"
    constraint = request.value("constraint") or ""
    if constraint.startswith("[") and "|" in constraint:
        return f"{request.source_of('constraint')}={constraint} cannot be kept over several nodes"
    return None


def _nodes_by_name(nodes: str) -> str | None:
    try:
        count = len(set(expand_hosts(nodes)))
    except ValueError:
        return f"its --nodelist={nodes[:60]} cannot be understood"
    return f"its owner asks for {count} nodes by name (--nodelist)" if count > 1 else None
