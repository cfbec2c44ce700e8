"""What one `scontrol update` requests, to give a waiting job another shape."""

from __future__ import annotations

from pollux_slurm.model import JobShape, SlurmJob


def shape_fields(shape: JobShape, job: SlurmJob) -> dict[str, str]:
    """Return the fields of `scontrol update` that give a job `shape`, except its nodes and its begin time.

    Every field that an earlier shape or the owner may have set is set or cleared: one stale minimum keeps a
    job PENDING with reason BadConstraints (22.05). What each field is for:

    - NumNodes is min-max. NumTasks is one per node, as the launcher starts them. NumCPUs is the number of
      GPUs times CPUs per GPU.
    - CpusPerTres: CPUs follow the GPUs. MinCPUsNode, CPUsPerTask, TasksPerNode: undo -c, --ntasks-per-node.
    - TresPerJob is the total number of GPUs. TresPerNode makes equal shares equal: without it 4 GPUs on two
      free nodes of 4 become 3 and 1 (22.05), and a node with 8 is not found beside smaller ones (26.05).
      TresPerTask, TresPerSocket: undo --gpus-per-task and the like, beside which TresPerJob is refused.
    - For a job with one thread a core, CPUs are requested in cores, and by one task for each GPU. With CPUs
      by GPU, slurmctld holds the job for good ("sync loop not progressing", 22.05).
    - MinMemoryCPU, for a job with --mem: memory follows the CPUs, which follow the GPUs. It is rounded down,
      so that the job fits wherever it fitted before. MemPerTres would take whole nodes (22.05).
    """
    nodes, cpus = shape.num_nodes, max(shape.cpus_per_gpu // job.threads_per_core, 1)
    gpu = f"gres:gpu:{job.requested_gpu_type}:" if job.requested_gpu_type is not None else "gres:gpu:"
    even = shape.num_gpus if nodes == 1 else shape.gpus_per_node
    fields = {
        "NumNodes": f"{nodes}-{nodes}",
        "NumTasks": str(shape.num_gpus if job.one_thread_per_core else nodes),
        "NumCPUs": str(shape.num_gpus * cpus),
        "CPUsPerTask": str(cpus if job.one_thread_per_core else 1),
        "MinCPUsNode": "1",
        "TasksPerNode": str((even or 0) if job.one_thread_per_core else 0),
        "CpusPerTres": "" if job.one_thread_per_core else f"gres:gpu:{cpus}",
        "TresPerNode": f"{gpu}{even}" if even is not None else "",
        "TresPerTask": "",
        "TresPerSocket": "",
        "TresPerJob": f"{gpu}{shape.num_gpus}",
        "ReqNodeList": "",
    }
    if job.memory_by_node and job.memory_per_gpu_mb is not None:
        fields["MinMemoryCPU"] = str(max(job.memory_per_gpu_mb // cpus, 1))
    return fields
