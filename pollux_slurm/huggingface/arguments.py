"""TrainingArguments of an adaptive Trainer: what is refused, and what is set for steps of global batches."""

from __future__ import annotations

import copy

from transformers import TrainingArguments

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.api.data_parallel import WHOLE_MODEL
from pollux_slurm.torch.session.current_session import current_session


def check_arguments(args: TrainingArguments) -> None:
    """Raise `UsageError` for arguments that cannot be right in a job that is moved."""
    refused = {
        "deepspeed": WHOLE_MODEL,
        "fsdp": WHOLE_MODEL,
        "parallelism_config": WHOLE_MODEL,
        "auto_find_batch_size": "the library itself starts again with smaller micro-batches: leave it out",
        "enable_jit_checkpoint": "SIGTERM writes the job's own checkpoint already: leave it out",
        "ddp_static_graph": "gradients are accumulated in a way that it does not allow: leave it out",
    }
    for name, reason in refused.items():
        if getattr(args, name, None):
            raise UsageError(f"{name}: {reason}")
    if getattr(args, "train_sampling_strategy", None) == "batch_rebalance":
        raise UsageError("batch_rebalance: the loader divides batches itself; use group_by_length")
    if "lomo" in str(args.optim).lower() or "layerwise" in str(args.optim).lower():
        raise UsageError(f"optim={args.optim}: it steps within the backward pass; use another optimizer")


def adapted_arguments(args: TrainingArguments) -> TrainingArguments:
    """Return a copy of the arguments for steps that are global batches already."""
    session = current_session()
    args = copy.copy(args)
    if args.device.type == "cpu" and args.world_size != session.world_size:
        # Without a GPU accelerate sees a group of processes only if told so: the devices are set up again.
        args.use_cpu = True
        vars(args).pop("_setup_devices")
        args.device  # noqa: B018
    if args.world_size != session.world_size:
        raise UsageError(
            f"transformers has {args.world_size} processes and the job {session.world_size}: start the "
            "script with `pollux run`"
        )
    # Several GPUs of one process would be torch's DataParallel.
    args._n_gpu = min(args.n_gpu, 1)
    args.gradient_accumulation_steps = 1
    args.average_tokens_across_devices = False
    return args
