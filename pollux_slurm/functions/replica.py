"""`python -m pollux_slurm.functions.replica FOLDER`: call a submitted function in one training process.

After each move it is called again, from its first line, like a training script. Where the job moves in place,
newcomers call it, and the others go on.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pollux_slurm.agent.environment.job_environment import read_environment
from pollux_slurm.agent.exit_codes import STOPPED_EXIT_CODES, LeftTraining
from pollux_slurm.errors import UsageError
from pollux_slurm.functions.files import (
    CALL,
    CALL_INFO,
    Outcome,
    cloudpickle,
    read_json,
    read_own,
    remove_older_outcomes,
    run_id,
    write_outcome,
)


def call(folder: Path, environ: Mapping[str, str]) -> None:
    """Call the function in `folder`, and keep there what it returns or raises; None after `sys.exit(0)`.

    Its exception is raised again: the training library looks at what ends a script.
    """
    environment = read_environment(environ)
    if environment.rank == 0:
        remove_older_outcomes(folder, run_id(environment))
    # Modules are imported from where the submitting process found them, in the same order.
    places = read_json(folder / CALL_INFO)["sys_path"]
    sys.path[:] = [*places, *(place for place in sys.path if place not in places)]
    function, arguments = pickle.loads(read_own(folder / CALL))
    value = None
    try:
        value = function(*arguments)
    except LeftTraining:
        # The result is that of those that stay.
        raise
    except (Exception, SystemExit) as error:
        code = error.code if isinstance(error, SystemExit) else 1
        if code in STOPPED_EXIT_CODES:
            # The job is moved, or it ends without a result.
            raise
        if code not in (0, None):
            own = error.__traceback__.tb_next if error.__traceback__ is not None else None
            text = "".join(traceback.format_exception(type(error), error, own))
            with contextlib.suppress(OSError):  # the disk may be full; the log has the error anyway
                _keep(folder, environ, text, _pickled_exception(error))
            raise
    try:
        pickled = cloudpickle().dumps(value)
    except Exception as error:
        text = (
            f"the function has returned a {type(value).__name__}, which cannot be pickled ({error}); let it "
            "return plain data, and write the rest to a file"
        )
        _keep(folder, environ, text, b"")
        raise UsageError(text) from error
    _keep(folder, environ, None, pickled)


def _pickled_exception(error: BaseException) -> bytes:
    try:
        pickled: bytes = cloudpickle().dumps(error)
        pickle.loads(pickled)  # many exceptions with arguments of their own cannot be made again
    except Exception:
        return b""
    return pickled


def _keep(folder: Path, environ: Mapping[str, str], error: str | None, pickled: Any) -> None:
    # Others may have joined or left since the function was called.
    environment = read_environment(environ)
    outcome = Outcome(
        run=run_id(environment),
        restart_count=environment.restart_count,
        rank=environment.rank,
        world_size=environment.world_size,
        at=time.time(),
        error=error,
        pickled=pickled,
    )
    write_outcome(folder, outcome)


if __name__ == "__main__":
    call(Path(sys.argv[1]), os.environ)
