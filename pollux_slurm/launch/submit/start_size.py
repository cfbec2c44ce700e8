"""With how many GPUs a job starts: as its options request, else the fewest that bounds and nodes allow."""

from __future__ import annotations

from pollux_slurm.errors import UsageError
from pollux_slurm.model import JobTerms
from pollux_slurm.slurm.parsing.node_constraints import expand_hosts
from pollux_slurm.slurm.sbatch.request import SbatchRequest, count_requested_gpus, count_requested_nodes
from pollux_slurm.text import plural

_GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres", "tres-per-task")


def start_gpus(request: SbatchRequest, terms: JobTerms) -> int:
    """Return the number. Raises `UsageError` where it is outside of the job's bounds.

    Where the options request GPUs without a number that can be computed, it is the job's minimum.
    """
    requested = count_requested_gpus(request)
    if requested.is_given:
        num_gpus = requested.num_gpus
        what = " and ".join(request.source_of(name) for name in _GPU_OPTIONS if request.given(name))
    else:
        # sbatch refuses fewer GPUs than nodes.
        nodes = max(count_requested_nodes(request), _num_named_nodes(request))
        num_gpus = max(terms.min_gpus, nodes)
        what = request.source_of("nodes" if request.given("nodes") else "nodelist")
    if num_gpus is None:
        return terms.min_gpus
    gpus = f"{plural(num_gpus, 'GPU')}{'' if requested.is_given else ', one on each node'}"
    if num_gpus < terms.min_gpus:
        raise UsageError(
            f"{what} requests {gpus}, below --min-gpus {terms.min_gpus}: leave it out, and the job starts "
            f"with {terms.min_gpus}; or request {terms.min_gpus} or more"
        )
    if terms.max_gpus is not None and num_gpus > terms.max_gpus:
        raise UsageError(
            f"{what} requests {gpus}, above --max-gpus {terms.max_gpus}: request {terms.max_gpus} or fewer, "
            "or raise --max-gpus"
        )
    return num_gpus


def _num_named_nodes(request: SbatchRequest) -> int:
    try:
        return len(set(expand_hosts(request.value("nodelist") or "")))
    except ValueError:
        return 1
