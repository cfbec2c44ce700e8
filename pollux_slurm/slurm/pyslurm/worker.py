"""The process that runs PySlurm: one request per line on standard input, one answer per line.

Only this module imports PySlurm. `process.PySlurmWorker` runs it as a process of its own, because of what
libslurm and PySlurm 25.11 do to their process:

- libslurm ends it where there is no slurm.conf, or where munge's plug-in cannot be loaded;
- a request keeps Python's global lock until slurmctld has answered, so no other thread runs meanwhile;
- one process can use one slurm.conf only; `import pyslurm` changes how later libraries are loaded.

It imports nothing of this package, and is run by its path.

Requests and answers are JSON objects: `{"do": "read_status", "job": 7}`, `{"answer": ...}` or
`{"errno": 2017, "message": "Invalid job id specified"}`. The first line sent is PySlurm's release.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

_RELEASE_PRIORITY = 0xFFFFFFFF  # INFINITE of slurm.h, as scontrol release sends it


def serve(pyslurm: Any, requests: TextIO, send: Callable[[dict[str, Any]], None]) -> None:
    """Answer requests until there are no more."""
    actions: dict[str, Callable[[int], Any]] = {
        "read_status": lambda job: _status_of(pyslurm.Job.load(job)),
        "requeue_hold": lambda job: pyslurm.Job(job).requeue(hold=True),
        "release": lambda job: pyslurm.Job(job).modify(
            pyslurm.JobSubmitDescription(priority=_RELEASE_PRIORITY)
        ),
    }
    for line in requests:
        request = json.loads(line)
        try:
            send({"answer": actions[request["do"]](int(request["job"]))})
        except pyslurm.PyslurmError as error:
            number = getattr(error, "errno", None)
            send({"errno": number if isinstance(number, int) else None, "message": str(error)[:500]})


def _status_of(job: Any) -> dict[str, Any]:
    """Return what a command needs to know of a job. No field contains text of a user's."""
    return {
        "job": job.id,
        "array": job.array_id,
        "state": job.state,
        "priority": job.priority,
        "min_cpus": job.min_cpus_per_node,
        "user_id": job.user_id,
        "restart_count": job.requeue_count,
    }


def main() -> int:
    """Import PySlurm, send its release, and serve."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print goes to standard error, not between the answers

    def send(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    # Without this, the import itself reads slurm.conf, and a failure ends the process without a message.
    os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
    try:
        pyslurm = importlib.import_module("pyslurm")
    except ImportError as error:
        print(f"PySlurm cannot be imported: {error}", file=sys.stderr)
        return 1
    pyslurm.slurm_init()
    send({"answer": str(pyslurm.__version__)})
    serve(pyslurm, sys.stdin, send)
    return 0


if __name__ == "__main__":
    sys.exit(main())
