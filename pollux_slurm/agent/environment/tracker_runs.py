"""One run in each tracker over all starts of a job: the variables by which they find it again.

The ids are kept in the job's checkpoint directory, because whoever goes on from its checkpoints goes on with
its run, and whoever deletes them begins a new one:

    trackers/wandb-run-id     made at the first start: W&B takes an id from the client
    trackers/mlflow-run-id    recorded at the first step of a run: MLflow's server makes its ids
    trackers/tensorboard/     where transformers writes; its default is another folder at each start
"""

from __future__ import annotations

import contextlib
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pollux_slurm.errors import PrivateFileError
from pollux_slurm.system.private_files import read_private, write_private

TRACKER_VARIABLES = "POLLUX_TRACKER_VARIABLES"
"""Names the variables that were set here: a job submitted by a training process inherits them."""

_FOLDER = "trackers"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


def tracker_variables(directory: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of rank 0 for its trackers; none without a directory. What is set stays.

    Makes W&B's id at the job's first start. A directory that cannot be written costs only the one run.
    """
    if directory is None:
        return {}
    variables = {}
    for tracker, name in (("wandb", "WANDB_RUN_ID"), ("mlflow", "MLFLOW_RUN_ID")):
        if name not in environ and (run_id := _known_or_new(directory, tracker)) is not None:
            variables[name] = run_id
    if "WANDB_RESUME" not in environ:
        # A new run at the first start, the same one later. Without it, each start replaces the run of its id,
        # the user's own, too.
        variables["WANDB_RESUME"] = "allow"
    if "TENSORBOARD_LOGGING_DIR" not in environ:
        variables["TENSORBOARD_LOGGING_DIR"] = str(directory / _FOLDER / "tensorboard")
    if variables:
        variables[TRACKER_VARIABLES] = ",".join(variables)
    return variables


def without_tracker_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without what `tracker_variables` has added to it."""
    own = {TRACKER_VARIABLES, *environ.get(TRACKER_VARIABLES, "").split(",")}
    return {key: value for key, value in environ.items() if key not in own}


def record_mlflow_run(directory: Path | None) -> None:
    """Record the MLflow run that is active in this thread, if any, for the job's next start.

    Of a nested run it is the outer one. Does nothing where the script has not imported MLflow.
    """
    mlflow: Any = sys.modules.get("mlflow")
    if directory is None or mlflow is None:
        return
    # A tracker must not stop training, whatever its version calls these.
    with contextlib.suppress(Exception):
        run = mlflow.active_run()
        if run is not None:
            keep_mlflow_run(directory, run.data.tags.get("mlflow.parentRunId", run.info.run_id))


def keep_mlflow_run(directory: Path, run_id: str) -> None:
    """Record the id of the job's MLflow run, in place of an earlier one."""
    known = None
    with contextlib.suppress(PrivateFileError):  # it is replaced
        known = _read(directory, "mlflow")
    if known != run_id:
        _keep(directory, "mlflow", run_id)


def _known_or_new(directory: Path, tracker: str) -> str | None:
    try:
        known = _read(directory, tracker)
    except PrivateFileError as error:
        # The file stays: once its owner has mended it, the next start goes on with its run.
        print(f"pollux: {tracker} begins a new run, since {error}", file=sys.stderr)
        return None
    return _keep(directory, tracker, secrets.token_hex(8)) if known is None and tracker == "wandb" else known


def _read(directory: Path, tracker: str) -> str | None:
    """Return an id; None where there is none. Raises `PrivateFileError` where others may have written it."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        file = directory / _FOLDER / f"{tracker}-run-id"
        text = read_private(file, in_any_folder=True).decode("ascii").strip()
        return text if _RUN_ID.fullmatch(text) else None
    return None


def _keep(directory: Path, tracker: str, run_id: str) -> str | None:
    """Write a file and return its content; None where it cannot be written."""
    if not _RUN_ID.fullmatch(run_id):
        return None
    path = directory / _FOLDER / f"{tracker}-run-id"
    try:
        path.parent.mkdir(exist_ok=True)
        write_private(path, f"{run_id}\n".encode("ascii"), in_any_folder=True, is_synced=False)
    except OSError:
        return None
    return run_id
