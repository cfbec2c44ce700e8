"""The process that holds PySlurm: one question a line on standard input, one answer a line.

The only module that imports PySlurm, and it is only ever run as a process of its own
(`process.PySlurmWorker`), because of what libslurm and PySlurm 25.11 do to the process they are in:

- libslurm ends it where there is no slurm.conf, or where munge's plug-in cannot be loaded;
- a question keeps Python's lock until slurmctld has answered, so no other thread runs meanwhile;
- one process knows one slurm.conf for good; `import pyslurm` changes how later libraries are loaded.

It imports nothing of this package, and is run by its path.

Questions and answers are JSON objects: `{"do": "peek", "job": 7}`, `{"answer": ...}` or
`{"errno": 2017, "words": "Invalid job id specified"}`. The first answer comes by itself: PySlurm's release.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

_RELEASE_PRIORITY = 0xFFFFFFFF  # INFINITE of slurm.h, as scontrol release sends it


def serve(pyslurm: Any, questions: TextIO, say: Callable[[dict[str, Any]], None]) -> None:
    """Answer until there are no more questions."""
    actions: dict[str, Callable[[int], Any]] = {
        "peek": lambda job: _peek(pyslurm.Job.load(job)),
        "requeue_hold": lambda job: pyslurm.Job(job).requeue(hold=True),
        "release": lambda job: pyslurm.Job(job).modify(
            pyslurm.JobSubmitDescription(priority=_RELEASE_PRIORITY)
        ),
    }
    for line in questions:
        question = json.loads(line)
        try:
            say({"answer": actions[question["do"]](int(question["job"]))})
        except pyslurm.PyslurmError as error:
            number = getattr(error, "errno", None)
            say({"errno": number if isinstance(number, int) else None, "words": str(error)[:500]})


def _peek(job: Any) -> dict[str, Any]:
    """Return what a command hangs on. No text in it was written by a user."""
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
    """Import PySlurm, say which it is, and serve."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    # Or the import itself would look for slurm.conf, and end this process before it can say why.
    os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
    try:
        pyslurm = importlib.import_module("pyslurm")
    except ImportError as error:
        print(f"PySlurm cannot be imported: {error}", file=sys.stderr)
        return 1
    pyslurm.slurm_init()
    say({"answer": str(pyslurm.__version__)})
    serve(pyslurm, sys.stdin, say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
