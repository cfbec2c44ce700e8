"""`init_process_group`: begin the session of this process, which ends with the process."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pollux_slurm.agent.environment.job_environment import read_environment
from pollux_slurm.agent.environment.job_log import log_to_stderr
from pollux_slurm.agent.rehearsal_protocol import read_run_plan
from pollux_slurm.config import Config
from pollux_slurm.errors import UsageError
from pollux_slurm.torch.session.current_session import has_session, set_session
from pollux_slurm.torch.session.joining import make_checkpoint_interval
from pollux_slurm.torch.session.session import Session


def init_process_group(
    backend: str | None = None,
    *,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_interval_s: float | Literal["auto"] | None = "auto",
    epoch_end_wait_s: float | None = None,
    max_wait_s: float = 600.0,
    node_mtbf_s: float = 7 * 86400.0,
    strict: bool = False,
    in_place: bool = False,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Join the job's other replicas and resume training from the last checkpoint.

    Call it before everything else of this package, except that `AdaptiveDataLoader`s may be made earlier.

    Args:
        backend: PyTorch's backend for collectives; None: NCCL on GPUs, gloo elsewhere. The process's own GPU
            becomes the current one.
        checkpoint_dir: The folder for checkpoints; None: that of `pollux run`, and without either none are
            written.
        checkpoint_interval_s: A checkpoint is written at the first step boundary after so many seconds.
            "auto": as often as loses least time, given what one costs and how often nodes fail. None: only on
            request, on SIGTERM and at the end.
        epoch_end_wait_s: A requested checkpoint waits for the end of the epoch if that is at most so many
            seconds away, and at most half of a move's time limit for checkpoints. None: the setting
            `agent.epoch_end_wait_s`.
        max_wait_s: Seconds after a requested checkpoint at which training goes on if nobody stops the job.
        node_mtbf_s: The mean time between failures of one node, in seconds, for "auto".
        strict: Raise `TrainingError` for a fault that training could go on with, such as weights that differ
            between replicas. Otherwise it is an error in the job's log. POLLUX_STRICT=1 sets it, too.
        in_place: The script allows that replicas join and leave while it trains: rank and world size may
            change between two steps (docs/moves.md). It has an effect in a job that was started for it
            (`pollux run --in-place`).
        environ: The variables with all settings of the job; None: the process's environment.

    Raises:
        UsageError: It was called already in this process, or an option is out of its bounds.

    Examples:
        >>> import pollux_slurm.torch as pollux
        >>> pollux.init_process_group(checkpoint_dir="checkpoints")
        >>> pollux.finished_epochs()  # 0 at the job's first start
        0
    """
    if has_session():
        raise UsageError("init_process_group was called already in this process")
    environ = os.environ if environ is None else environ
    environment = read_environment(environ)
    log_to_stderr()
    plan = read_run_plan(environ)
    make_session: Callable[..., Session] = Session
    if plan is not None:
        from pollux_slurm.torch.rehearsal.rehearsal import Rehearsal

        make_session = Rehearsal(plan, environment).make_session
        checkpoint_dir, checkpoint_interval_s = plan.folder.parent / "job", None
    session = make_session(
        environment,
        backend=backend,
        checkpoint_dir=Path(checkpoint_dir) if checkpoint_dir is not None else environment.checkpoint_dir,
        checkpoint_interval=make_checkpoint_interval(
            checkpoint_interval_s, node_mtbf_s / environment.num_nodes
        ),
        epoch_end_wait_s=_epoch_end_wait_s(environment.config, epoch_end_wait_s),
        max_wait_s=max_wait_s,
        strict=strict or environment.strict,
        in_place=in_place,
    )
    atexit.register(session.leave)
    # Restores the loaders that were made before the session.
    set_session(session)


def _epoch_end_wait_s(config: Config, given_s: float | None) -> float:
    """Return how long a request may wait. Half of a move's time limit is left for the checkpoint itself."""
    if given_s is not None and not given_s >= 0:
        raise UsageError(f"epoch_end_wait_s must be seconds from 0, not {given_s!r}")
    wanted_s = config.agent.epoch_end_wait_s if given_s is None else given_s
    return min(wanted_s, config.daemon.checkpoint_timeout_s / 2)
