"""`pollux` alone: where one stands, and what is likely wanted next."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pollux_slurm.cli.shared import clock
from pollux_slurm.errors import PolluxError

if TYPE_CHECKING:
    from pollux_slurm.now.cluster import ClusterNow

COMMANDS = (
    ("pollux sbatch --max-gpus 8 train.sbatch", "submit an adaptive job"),
    ("pollux rehearse -- python train.py", "try a script's moves on this machine"),
    ("pollux top", "watch the cluster and your jobs"),
    ("pollux explain JOB", "why a job has its GPUs"),
    ("pollux report job JOB -o job.html", "a page about a job"),
    ("pollux --help", "all commands"),
)


def standing_lines() -> list[str]:
    """Return what to print, read from the settings and the store. No error: what is wrong is a line, too."""
    found: list[str] = []
    try:
        found += _state()
    except PolluxError as error:
        found.append(str(error))
    width = max(len(command) for command, _ in COMMANDS)
    return [*found, "", *(f"  {command:<{width}}  {meaning}" for command, meaning in COMMANDS)]


def _state() -> Iterator[str]:
    from pollux_slurm.cli.shared.settings_and_store import opened_store, settings
    from pollux_slurm.now.cluster import read_cluster

    config = settings(None, None)
    if config.store.url is None:
        yield "No store is set: jobs train, but are neither moved nor measured."
        yield "To make one: pollux init"
        return
    with opened_store(config) as store:
        picture = read_cluster(store, now=clock.now())
    start = "" if picture.missing is None else " To start one: pollux daemon"
    yield f"{picture.daemon_sentence}{start}"
    yield _jobs_line(picture, getpass.getuser())


def _jobs_line(picture: ClusterNow, user: str) -> str:
    own = [job for job in picture.jobs if job.record.user_name == user and not job.record.state.is_over]
    if not own:
        return "None of your adaptive jobs is registered; of one just submitted: pollux status."
    states = [picture.state_of(job) for job in own]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"Your adaptive jobs: {counted}."
