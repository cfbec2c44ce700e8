"""Note how this rank ends by an error, and whether that came of the end of another one.

A rank that has lost its connection to another one is not shown as the cause: neither its traceback, where
another rank is known to have failed, nor in the last line of the log.
"""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path
from types import TracebackType

import torch.distributed as dist

from pollux_slurm.agent.checkpoints.failures import (
    RankFailure,
    error_text,
    read_failures,
    record_failure,
)
from pollux_slurm.agent.environment.job_environment import JobEnvironment
from pollux_slurm.torch.regroup.user_frames import is_user_code

_LOG = logging.getLogger(__name__)
# In each error of gloo's connections: "[.../gloo/transport/tcp/pair.cc:534] Connection closed by peer".
_GLOO = "gloo/transport"
# `pollux run` notes a process that was killed about as soon as others lose their connections to it.
_NOTED_WITHIN_S, _POLL_INTERVAL_S = 2.0, 0.1

OTHER_CALLS = (
    "Either a replica has left the loop by its own decision, such as early stopping by its own share of the "
    "data: decide by a value that all have, summed in an Accumulator. Or one calls the wrapped model alone, "
    "such as an evaluation on rank 0: call model.module(...) there"
)


def is_peer_lost(error: BaseException) -> bool:
    """Return whether an error came of a connection to another rank."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and _GLOO in str(error))


def note_failure(
    error: BaseException, directory: Path | None, environment: JobEnvironment, *, run_number: int
) -> bool:
    """Record the error that ends this rank; return whether its traceback is to be shown."""
    is_lost, rank = is_peer_lost(error), environment.rank
    if directory is not None:
        failure = RankFailure(
            rank=rank,
            host=socket.gethostname() if environment.num_nodes > 1 else "",
            at_s=time.time(),
            error=error_text(error),
            place=_script_place(error.__traceback__),
            is_cause=not is_lost,
        )
        record_failure(directory, failure, run_number=run_number)
    if not is_lost or environment.world_size == 1:
        return True
    cause = _cause(directory, run_number=run_number, rank=rank)
    if cause is not None:
        _LOG.error("rank %d ends, because another one has failed: %s", rank, cause.text)
    return cause is None


def explain_loss(environment: JobEnvironment) -> None:
    """Explain, after its traceback, the loss of a rank that is not known to have failed."""
    _LOG.error(
        "rank %d has lost its connection to another one. If none has failed, the replicas did not make the "
        "same calls. %s",
        *(environment.rank, OTHER_CALLS),
    )


def _cause(directory: Path | None, *, run_number: int, rank: int) -> RankFailure | None:
    """Return the failure of another rank of this run; None where none is noted in time."""
    if directory is None:
        return None
    for _ in range(round(_NOTED_WITHIN_S / _POLL_INTERVAL_S)):
        for known in read_failures(directory, since_run=run_number):
            if known.is_cause and known.rank != rank:
                return known
        time.sleep(_POLL_INTERVAL_S)
    return None


def _script_place(traceback: TracebackType | None) -> str:
    """Return the innermost line of the script's own code; "" where there is none."""
    place = ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if is_user_code(file):
            place = f"{Path(file).name}, line {traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
