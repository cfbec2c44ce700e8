"""Run the training processes in containers: `pollux run --wrap-with ...` and `--srun-args ...`.

`--wrap-with` puts a command such as `apptainer exec image.sif` before that of each process; `pollux run`
itself stays outside. With `--srun-args`, a plug-in of Slurm such as pyxis starts the whole step in a
container, with the program that starts a node's processes.

A container that lacks the variables or folders of the job would train, write its checkpoints to where they
are lost, and report nothing. So both are checked inside of it before the command starts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pollux_slurm.agent.environment.layout import RENDEZVOUS_VARIABLE, SECRET_VARIABLE
from pollux_slurm.errors import UsageError
from pollux_slurm.launch.node.node_program import NODE_PROGRAM

_JOB_VARIABLES = ("POLLUX_CHECKPOINT_DIR", "POLLUX_TOKEN_FILE")
# Run by the container's shell, with the required variables, `--`, the required paths, `--` and the command as
# its arguments. It becomes the command (`exec`): no process is added. Wrappers start with SIGTERM ignored; a
# command that has no handler yet must end by it, where the container's `env` can reset that.
_CHECKS = f"""\
fail() {{ echo "pollux: --wrap-with: $1" >&2; exit 2; }}
while [ "$1" != -- ]; do
  eval "[ -n \\"\\${{$1}}\\" ]" || fail "it hides the variable $1 of pollux run from the processes: \
leave out options such as --cleanenv and --containall"
  shift
done
shift
[ -z "${RENDEZVOUS_VARIABLE}" ] || set -- "${{{RENDEZVOUS_VARIABLE}%/*}}" "$@"
while [ "$1" != -- ]; do
  [ -e "$1" ] || fail "$1 cannot be seen in the container: mount it there (apptainer: --bind)"
  shift
done
shift
if env --default-signal=TERM true 2>/dev/null; then set -- env --default-signal=TERM "$@"; fi
exec "$@\""""

_CONTAINER_OPTIONS = ("container", "container-image", "container-name", "container-id")
_PYXIS_VARIABLES = ("PYXIS_CONTAINER_IMAGE", "PYXIS_CONTAINER_NAME")
# What `pollux run` decides for its step, what would give a node's task another share of the job, and what
# starts no training.
_REFUSED = frozenset(
    {
        *("nodes", "ntasks", "ntasks-per-node", "tasks-per-node", "ntasks-per-core", "ntasks-per-gpu"),
        *(
            "ntasks-per-socket",
            "ntasks-per-tres",
            "nodelist",
            "nodefile",
            "exclude",
            "relative",
            "distribution",
        ),
        *("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gpu-bind", "gres", "tres-per-task"),
        *("cpus-per-task", "cpus-per-gpu", "cores-per-socket", "sockets-per-node", "threads-per-core"),
        *("mem", "mem-per-cpu", "mem-per-gpu", "exact", "exclusive", "kill-on-bad-exit"),
        *("wait", "export", "input", "pty", "multi-prog", "jobid", "no-allocate", "het-group", "pack-group"),
        *("test-only", "help", "usage", "version", "bcast", "resv-ports"),
    }
)


def split_words(text: str, option: str) -> tuple[str, ...]:
    """Split the value of `option` into words as a shell does."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{option}: {text!r} is not a list of words: {error}") from None
    if not words:
        raise UsageError(f"{option} is empty (an unset shell variable?)")
    return words


def srun_arguments(text: str) -> tuple[str, ...]:
    """Return the options of `--srun-args`, each as one word. Raises `UsageError` for those refused.

    No command is among them, so that a word without dashes can only be the value of the option before.
    """
    arguments: list[str] = []
    for word in split_words(text, "--srun-args"):
        if not word.startswith("-"):
            if not arguments or "=" in arguments[-1]:
                raise UsageError(f"--srun-args: {word!r} is not an option of srun")
            arguments[-1] += f"={word}"
            continue
        if not word.startswith("--") or word == "--":
            raise UsageError(f"--srun-args: write options of srun by their long names, not {word}")
        written = word[2:].partition("=")[0]
        if any(name.startswith(written) for name in _REFUSED):
            raise UsageError(f"--srun-args: --{written} contradicts what pollux run decides; leave it out")
        arguments.append(word)
    return tuple(arguments)


def is_given(name: str, arguments: Iterable[str]) -> bool:
    """Return whether the option `name` of srun is among `arguments`."""
    return any(argument.partition("=")[0] == f"--{name}" for argument in arguments)


def srun_starts_container(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether srun with these arguments starts its tasks in a container."""
    given = any(is_given(name, arguments) for name in _CONTAINER_OPTIONS)
    return given or any(environ.get(name) for name in _PYXIS_VARIABLES)


def node_command(*, python: str, in_container: bool) -> list[str]:
    """Return the command of a node's task, before the training command.

    In a container that srun starts, it is run by the container's own `python3`. A shell looks that up there,
    because srun looks its command up outside.
    """
    if in_container:
        return ["/bin/sh", "-c", 'exec python3 "$@"', "pollux", "-c", NODE_PROGRAM]
    return [python, "-c", NODE_PROGRAM]


def wrapped_command(
    command: Sequence[str],
    wrapper: Sequence[str],
    required_paths: Iterable[Path],
    *,
    environ: Mapping[str, str],
) -> list[str]:
    """Return the command of each process: the wrapper, the checks, and the training command.

    The job's variables that are in `environ` must be visible in the container.
    """
    variables = [SECRET_VARIABLE, *(name for name in _JOB_VARIABLES if environ.get(name))]
    paths = [str(path) for path in required_paths]
    return [*wrapper, "/bin/sh", "-c", _CHECKS, "pollux", *variables, "--", *paths, "--", *command]


def required_paths(environ: Mapping[str, str], *, store_file: Path | None) -> tuple[Path, ...]:
    """Return what a job's processes need to see: checkpoints, token, and the file of an SQLite store.

    What is missing outside, too, is left out.
    """
    named = [environ.get(name) for name in _JOB_VARIABLES]
    paths = [*(Path(name) for name in named if name), *([store_file] if store_file is not None else [])]
    return tuple(path for path in paths if path.exists())
