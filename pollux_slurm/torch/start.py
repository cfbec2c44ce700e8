"""`init_process_group`: begin the session of this process, which ends with the process."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pollux_slurm.agent.node.environment import read_environment
from pollux_slurm.agent.node.job_log import log_to_stderr
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

    `backend` is NCCL on GPUs and gloo elsewhere; the process's own GPU becomes the current one.

    Checkpoints go to `checkpoint_dir`, else to the directory that `pollux run` set; without either none are
    written. One is written at the first step boundary after each `checkpoint_interval_s`. None: only on
    request, on SIGTERM and at the end. "auto": as often as loses least time, given the cost of one and that a
    node fails every `node_mtbf_s`. After a requested one, training goes on after `max_wait_s` if nobody stops
    the job. A requested one waits for the end of the epoch if that is at most `epoch_end_wait_s` away (None:
    the setting `agent.epoch_end_wait_s`), and at most half of a move's time limit for checkpoints.

    A fault that training can go on with (the replicas' weights differ) is an error in the job's log; with
    `strict`, or POLLUX_STRICT=1, it raises `TrainingError`.

    With `in_place` the script allows that replicas join and leave while it trains, where the job was started
    for it (`pollux run --in-place`): rank and world size may change between two steps (docs/moves.md).

    All settings of the job come from `environ` (the process's environment unless given).
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
