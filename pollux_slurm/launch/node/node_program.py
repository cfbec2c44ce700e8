"""Start the training processes of one node by `pollux run`'s srun, and note how each that failed has ended.

Each run of a job starts it on each node, so it imports little.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pollux_slurm.agent.checkpoints.failures import RankFailure, read_failures, record_failure
from pollux_slurm.agent.checkpoints.lineage import newest_run
from pollux_slurm.agent.environment.layout import STEP_VARIABLE, RunLayout
from pollux_slurm.agent.environment.rank_environments import rank_environments
from pollux_slurm.agent.exit_codes import STOPPED_EXIT_CODES
from pollux_slurm.errors import LaunchError, PolluxError, PrivateFileError
from pollux_slurm.launch.node.rendezvous import rendezvous_file
from pollux_slurm.launch.node.torchrun import torchrun_environment, torchrun_exit_code
from pollux_slurm.launch.node.watched_processes import ExitStatus, WatchedProcesses
from pollux_slurm.system.private_files import write_private
from pollux_slurm.text import log_lines, one_line
from pollux_slurm.whole_numbers import whole_number

# Not `python -m`: that would import modules from the working directory, from the user's own files.
NODE_PROGRAM = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
    "from pollux_slurm.launch.node.node_program import main; main()"
)
"""The program for `python -c`; the command of the training processes follows as its arguments."""

_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


def main() -> None:
    """Run this node's processes of the layout in POLLUX_STEP, and exit with their exit code."""
    log_lines()
    try:
        code = run_in_step(sys.argv[1:], environ=dict(os.environ))
    except PolluxError as error:
        print(one_line(f"pollux: {error}"), file=sys.stderr)
        code = error.exit_code
    sys.exit(code)


def run_in_step(command: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Run this node's processes of the layout in `environ`, and return their exit code."""
    layout = RunLayout.decode(environ[STEP_VARIABLE])
    index = _node_index(layout, environ)
    name, count = layout.nodes[index]
    for path in layout.required_paths:
        if not path.exists():
            raise LaunchError(
                f"{path} cannot be seen in the container on {name}: mount it (pyxis: --container-mounts)"
            )
    found = visible_gpus(environ)
    if layout.uses_gpus and found != count:
        raise LaunchError(
            f"job {layout.job_id} owns {count} GPUs on {name}, but its step sees {found} there; "
            "run: scontrol show job -d " + str(layout.job_id)
        )

    def note_failure(code: int, rank: str | None) -> None:
        note_failed_process(code, rank, host=name, environ=environ)
        write_exit_code(code)

    def write_exit_code(code: int) -> None:
        if layout.exit_file is not None:
            with contextlib.suppress(OSError):  # another node may have written its code first, which stays
                content = f"{code}\n".encode("ascii")
                write_private(layout.exit_file, content, is_new=True, in_any_folder=True, is_synced=False)

    try:
        is_file = len(layout.nodes) == 1 and not layout.starts_torchrun
        with rendezvous_file() if is_file else contextlib.nullcontext() as file:
            processes = WatchedProcesses(
                command,
                process_environments(layout, index, environ, rendezvous_file=file),
                kill_after_s=layout.kill_after_s,
                on_failure=note_failure,
                is_wrapped=layout.is_wrapped,
            )
            code = processes_exit_code(layout, processes.run())
            if code not in (0, *STOPPED_EXIT_CODES):
                write_exit_code(code)  # it may have failed after it was asked to stop
    except LaunchError as error:
        write_exit_code(error.exit_code)
        raise
    if code == 0 and (end_file := layout.end_file(index)) is not None:
        # It counts as stopped, else, and goes on from its last checkpoint.
        with contextlib.suppress(OSError, PrivateFileError):
            write_private(end_file, b"", is_synced=False)
    return code


def note_failed_process(code: int, rank: str | None, *, host: str, environ: Mapping[str, str]) -> None:
    """Record that a rank has failed, where it has not done so itself: killed, or ended by the script.

    One that ends as a stopped one does has not failed.
    """
    if code in STOPPED_EXIT_CODES:
        return
    directory = environ.get("POLLUX_CHECKPOINT_DIR")
    if directory is None or rank is None or (run := newest_run(Path(directory))) is None:
        return
    if all(one.rank != int(rank) for one in read_failures(Path(directory), since_run=run)):
        how = f"exit code {code}"
        if code > 128 and code - 128 in signal.valid_signals():
            how = f"signal {signal.Signals(code - 128).name}"
        failure = RankFailure(rank=int(rank), host=host, at_s=time.time(), error=how)
        record_failure(Path(directory), failure, run_number=run)


def process_environments(
    layout: RunLayout, node_index: int, environ: Mapping[str, str], *, rendezvous_file: Path | None
) -> list[dict[str, str]]:
    """Return the environment of each process that is started on a node: its ranks, or its torchrun."""
    if layout.starts_torchrun:
        return [torchrun_environment(layout, node_index, environ)]
    return rank_environments(layout, node_index, environ, rendezvous_file=rendezvous_file)


def processes_exit_code(layout: RunLayout, status: ExitStatus) -> int:
    """Return the exit code of a node's processes."""
    if layout.starts_torchrun:
        return torchrun_exit_code(status.exit_code, was_stopped=not status.failed_by_itself)
    return status.exit_code


def _node_index(layout: RunLayout, environ: Mapping[str, str]) -> int:
    """Return this node's index in the layout: by its number if the names agree, else by its name."""
    text = environ.get("SLURM_NODEID", "")
    number = whole_number(text)
    name = environ.get("SLURMD_NODENAME", "")
    if number is not None and number < len(layout.nodes) and layout.nodes[number][0] in (name, ""):
        return number
    for index, (known, _) in enumerate(layout.nodes):
        if known == name:
            return index
    raise LaunchError(f"node {name or '?'} (number {text or '?'}) is not among those of job {layout.job_id}")


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Return the number of GPUs that a process started now would see."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in environ:
            listed = [part.strip() for part in environ[name].split(",")]
            # CUDA ignores all entries after the first invalid one.
            valid = listed.index("-1") if "-1" in listed else len(listed)
            return len([part for part in listed[:valid] if part and part != "NoDevFiles"])
    on_node = whole_number(environ.get("SLURM_GPUS_ON_NODE", ""))
    if on_node is not None:
        return on_node
    with contextlib.suppress(OSError):
        return len(list(_NVIDIA_GPUS.iterdir()))
    return 0
