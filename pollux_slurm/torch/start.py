"""`init_process_group`: begin the session of this process, which ends with the process."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

from pollux_slurm.agent.launch.environment import read_environment
from pollux_slurm.agent.launch.job_log import log_to_stderr
from pollux_slurm.agent.rehearsal_protocol import read_run_plan
from pollux_slurm.config import Config
from pollux_slurm.errors import UsageError
from pollux_slurm.torch.session.current_session import has_session, set_session
from pollux_slurm.torch.session.joining import pace_of
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
    environ: Mapping[str, str] | None = None,
) -> None:
    """Join the job's other replicas and take up the training where its last checkpoint left it.

    Call it before all else of this package but `AdaptiveDataLoader`s, which may be made before.

    `backend` is NCCL on GPUs and gloo elsewhere; the process's own GPU becomes the current one.

    Checkpoints go to `checkpoint_dir`, else to where `pollux run` said; without either none are written. One
    is written at the first step boundary after each `checkpoint_interval_s` (None: only on request, on
    SIGTERM and at the end; "auto": as often as loses least time, given what one costs and that a node fails
    every `node_mtbf_s`), and training goes on by itself `max_wait_s` after a requested one if nobody stops
    the job. A requested one waits for the end of the epoch if that is at most `epoch_end_wait_s` away (None:
    the setting `agent.epoch_end_wait_s`), and never longer than half the time that a move has for it.

    What is wrong with the training but lets it go on (the replicas' weights differ) is an error in the job's
    log; with `strict`, or POLLUX_STRICT=1, it raises `TrainingError`.

    Everything the job was told comes from `environ` (the process's environment unless given).
    """
    if has_session():
        raise UsageError("init_process_group was called already in this process")
    environ = os.environ if environ is None else environ
    environment = read_environment(environ)
    log_to_stderr()
    plan = read_run_plan(environ)
    make_session: Callable[..., Session] = Session
    if plan is not None:
        from pollux_slurm.torch.rehearsal.session import RehearsedSession

        make_session = partial(RehearsedSession, plan)
        checkpoint_dir, checkpoint_interval_s = plan.folder.parent / "job", None
    session = make_session(
        environment,
        backend=backend,
        checkpoint_dir=Path(checkpoint_dir) if checkpoint_dir is not None else environment.checkpoint_dir,
        pace=pace_of(checkpoint_interval_s, node_mtbf_s / environment.num_nodes),
        epoch_end_wait_s=_epoch_end_wait_s(environment.config, epoch_end_wait_s),
        max_wait_s=max_wait_s,
        strict=strict or environment.strict,
    )
    atexit.register(session.leave)
    # Restores the loaders that were made before it.
    set_session(session)


def _epoch_end_wait_s(config: Config, given_s: float | None) -> float:
    """Return how long a request may wait. The other half of a move's time is for the checkpoint itself."""
    if given_s is not None and not given_s >= 0:
        raise UsageError(f"epoch_end_wait_s must be seconds from 0, not {given_s!r}")
    wanted_s = config.agent.epoch_end_wait_s if given_s is None else given_s
    return min(wanted_s, config.daemon.checkpoint_timeout_s / 2)
