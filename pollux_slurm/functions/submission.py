"""`pollux_slurm.submit`: submit a Python function as an adaptive job."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import os
import re
import secrets
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from pollux_slurm.agent.environment.token import new_token
from pollux_slurm.config import Config, load_config
from pollux_slurm.errors import SlurmCommandError, SlurmUnavailable, UsageError
from pollux_slurm.functions.call_kind import kind_of_call, qualified_name
from pollux_slurm.functions.files import CALL, CALL_INFO, JOB, cloudpickle, write_json
from pollux_slurm.functions.job import SubmittedJob
from pollux_slurm.launch.node.node_program import visible_gpus
from pollux_slurm.launch.submit.checkpoint_folder import (
    checkpoints_folder,
    make_private_dir,
    remove_empty_dirs,
)
from pollux_slurm.launch.submit.given_words import POLLUX_OPTIONS
from pollux_slurm.launch.submit.room_for_wings import RoomForWings
from pollux_slurm.launch.submit.submission import submit_plan
from pollux_slurm.launch.submit.submission_plan import (
    SubmissionPlan,
    absolute,
    plan_submission,
)
from pollux_slurm.slurm.connection import make_runner
from pollux_slurm.slurm.sbatch.options import PYXIS_OPTIONS, SBATCH_OPTIONS, parse_words
from pollux_slurm.system.private_files import write_private
from pollux_slurm.system.process_control import spawn
from pollux_slurm.text import one_line

R = TypeVar("R")
Cluster = Literal["slurm", "local"]

# What the submission decides itself, or what submits nothing.
_REFUSED = frozenset({"wrap", "parsable", "wait", "test-only", "help", "usage", "version"})


@overload
def submit(
    function: Callable[..., R],
    /,
    *args: Any,
    dry_run: Literal[True],
    min_gpus: int | None = ...,
    max_gpus: int | None = ...,
    in_place: bool | None = ...,
    checkpoint_dir: str | os.PathLike[str] | None = ...,
    setup: str | Sequence[str] = ...,
    cluster: Cluster = ...,
    **sbatch: object,
) -> str: ...
@overload
def submit(
    function: Callable[..., R],
    /,
    *args: Any,
    dry_run: Literal[False] = ...,
    min_gpus: int | None = ...,
    max_gpus: int | None = ...,
    in_place: bool | None = ...,
    checkpoint_dir: str | os.PathLike[str] | None = ...,
    setup: str | Sequence[str] = ...,
    cluster: Cluster = ...,
    **sbatch: object,
) -> SubmittedJob[R]: ...
def submit(
    function: Callable[..., R],
    /,
    *args: Any,
    dry_run: bool = False,
    min_gpus: int | None = None,
    max_gpus: int | None = None,
    in_place: bool | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    setup: str | Sequence[str] = (),
    cluster: Cluster = "slurm",
    **sbatch: object,
) -> SubmittedJob[R] | str:
    """Submit a job that calls `function(*args)` in each of its replicas, and return the job.

    The function is an ordinary adaptive training script: it calls `pollux_slurm.torch.init_process_group`,
    and after each move it is called again, from its first line. Function and arguments are pickled into a
    file that only you can read, so that later changes of a notebook do not matter. Imported modules are not:
    they must be the same on the nodes.

    Args:
        function: What the replicas call.
        *args: Its arguments; for those by name, `functools.partial`.
        dry_run: Submit nothing, and return the shell commands that would.
        min_gpus: The least GPUs; None: one.
        max_gpus: The most GPUs; None: no bound, but the site's.
        in_place: Processes may join and leave while the function trains. It then calls
            `init_process_group(in_place=True)`, and newcomers call it, too. None: the site's default.
        checkpoint_dir: The folder of an earlier job's checkpoints, to go on from; None: a new one.
        setup: Lines of shell before the command, such as `module load cuda`.
        cluster: "slurm", or "local": on this machine, a process for each GPU, at least `min_gpus` and at most
            `max_gpus`.
        **sbatch: Options of sbatch, with `_` for `-`: `time="4:00:00"`, `cpus_per_gpu=4`, `contiguous=True`;
            and `total_time`, `kind` and `allow_unconfirmed`, those of `pollux sbatch`.

    Raises:
        UsageError: An option or argument cannot be right; nothing was submitted.
        SlurmCommandError: sbatch refused the job.
        SlurmUnavailable: slurmctld does not answer.

    Examples:
        >>> import pollux_slurm
        >>> def train(learning_rate):
        ...     return learning_rate / 2
        >>> commands = pollux_slurm.submit(train, 0.1, min_gpus=1, max_gpus=8, time="4:00:00", dry_run=True)
        >>> job = pollux_slurm.submit(train, 0.1, cluster="local", min_gpus=1)
        >>> job.result()
        0.05
    """
    if not callable(function):
        raise UsageError(f"submit takes a function and its arguments, not a {type(function).__name__}")
    if cluster not in ("slurm", "local"):
        raise UsageError(f"cluster is 'slurm' or 'local', not {cluster!r}")
    own = {
        "min_gpus": min_gpus,
        "max_gpus": max_gpus,
        "in_place": in_place,
        "checkpoint_dir": checkpoint_dir,
        "setup": setup or None,
    }
    options = [*sbatch, *(key for key, value in own.items() if value is not None)]
    _refuse_arguments_among_options(function, args, options)
    if cluster == "local" and (sbatch or setup):
        names = sorted([*sbatch, *(["setup"] if setup else [])])
        raise UsageError(f"{', '.join(names)}: only for Slurm; leave it out for a local job")
    config = load_config(os.environ)
    call = _Call.of(function, args, config, checkpoint_dir)
    if cluster == "local":
        command = _local_command(call, min_gpus, max_gpus, in_place=bool(in_place))
        if dry_run:
            return shlex.join(command) + "\n"
        with _call_files(call):
            return _start_here(command, call)

    if sbatch.get("kind") is None:
        folder = Path.cwd() / str(sbatch.get("chdir") or "")
        sbatch["kind"] = kind_of_call(function, args, folder=folder)
    given = {**sbatch, "min_gpus": min_gpus, "max_gpus": max_gpus, "checkpoint_dir": call.directory}
    words = _option_words(given)
    if in_place is not None:
        words.append("--in-place" if in_place else "--no-in-place")
    return _submit_to_slurm(call, _with_defaults(words, call), setup, sbatch, config, dry_run=dry_run)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call that is to be made. `directory` is for checkpoints, `folder` in it for the call alone."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    name: str
    identifier: str
    directory: Path
    folder: Path

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        config: Config,
        checkpoint_dir: str | os.PathLike[str] | None,
    ) -> _Call:
        shown = getattr(function, "__name__", type(function).__name__)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", shown).strip("_-.")
        identifier, cwd = secrets.token_hex(4), Path.cwd()
        default = checkpoints_folder(config.checkpoints, cwd) / f"{name[:40] or 'function'}-{identifier}"
        named = None if checkpoint_dir is None else os.fspath(checkpoint_dir)
        directory = absolute(named, cwd=cwd) or default
        return cls(
            function=function,
            args=args,
            name=name,
            identifier=identifier,
            directory=directory,
            folder=directory / f"function-{identifier}",
        )


def _with_defaults(words: Sequence[str], call: _Call) -> list[str]:
    """Return the words of sbatch's options, with a name and logs where there are none."""
    defaults = {"job-name": call.name or "function", "output": _log_pattern(call.folder, "stdout")}
    written = {word[2:].partition("=")[0] for word in words}
    if not written & {"output", "error"}:
        defaults["error"] = _log_pattern(call.folder, "stderr")
    return [*words, *(f"--{option}={value}" for option, value in defaults.items() if option not in written)]


def _submit_to_slurm(
    call: _Call,
    words: Sequence[str],
    setup: str | Sequence[str],
    named: Iterable[str],
    config: Config,
    *,
    dry_run: bool,
) -> SubmittedJob[Any] | str:
    """Submit the call with the options `words`, some of which the user has `named`."""
    cwd, token, runner = Path.cwd(), new_token(os.getuid()), make_runner(config.slurm, os.environ)
    plan = plan_submission(
        parse_words([*words, "--parsable"], exact=POLLUX_OPTIONS),
        environ=os.environ,
        cwd=cwd,
        config=config,
        token=token,
        identifier=call.identifier,
        read_stdin=_script(call, setup).encode,
        room_for_wings=RoomForWings(runner, config.moves),
    )

    def say(line: str) -> None:
        print(one_line(f"pollux: {line}"), file=sys.stderr)

    for line in plan.warnings:
        say(line)
    if dry_run:
        return plan.as_shell_commands()
    runner.find("sbatch")
    with _call_files(call):
        try:
            job_id = submit_plan(plan, token=token, runner=runner, environ=os.environ, cwd=cwd, say=say)
        except SlurmCommandError as error:
            raise SlurmCommandError(f"{error}{_hint(named)}") from None
        return _keep(_job(plan, job_id, call.folder))


def _option_words(options: Mapping[str, object]) -> list[str]:
    """Return the words of sbatch's options given by name; None and False leave one out."""
    words = []
    for key, value in options.items():
        name = key.replace("_", "-")
        if len(name) == 1:
            raise UsageError(f"{key}=: write the long name of sbatch's option -{key}")
        if name in _REFUSED:
            raise UsageError(f"{key}=: not for a submitted function")
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words.append(f"--{name}={value}")
    return words


def _refuse_arguments_among_options(
    function: Callable[..., Any], args: tuple[Any, ...], options: Iterable[str]
) -> None:
    """Raise `UsageError` for an option that is the name of an argument without a value."""
    try:
        signature = inspect.signature(function)
        given = signature.bind_partial(*args).arguments.keys() | getattr(function, "keywords", {}).keys()
    except (TypeError, ValueError):  # arguments that do not fit are the function's error; C has no signature
        return
    for key in options:
        if key in signature.parameters and key not in given:
            raise UsageError(
                f"{key}= may be an argument of the function or an option of the job. For the argument write "
                f"functools.partial(function, {key}=...); once that has a value, {key}= is the option"
            )


def _hint(options: Iterable[str]) -> str:
    """Return which option of sbatch the user may have meant; empty if all of them exist."""
    known = {option.name for option in (*SBATCH_OPTIONS, *PYXIS_OPTIONS, *POLLUX_OPTIONS)}
    for key in options:
        name = key.replace("_", "-")
        similar = [] if name in known else difflib.get_close_matches(name, sorted(known), n=1)
        if similar:
            return f". Do you mean {similar[0].replace('-', '_')}= instead of {key}=?"
    return ""


def _script(call: _Call, setup: str | Sequence[str]) -> str:
    """Return the batch script, in the form that a user would write."""
    run, function = shlex.join([*_pollux(), "run", "--", *_replica_command(call.folder)]), call.function
    before = [setup] if isinstance(setup, str) else setup
    lines = [
        "#!/bin/bash",
        f"# made by pollux_slurm.submit of {' '.join(qualified_name(function).split())}",
        *before,
        run,
    ]
    return "\n".join(lines) + "\n"


def _pollux() -> list[str]:
    """Return the command `pollux` of this Python."""
    command = Path(sys.executable).with_name("pollux")
    return [str(command)] if command.exists() else [sys.executable, "-m", "pollux_slurm"]


def _replica_command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "pollux_slurm.functions.replica", str(folder)]


def _log_pattern(folder: Path, name: str) -> str:
    """Return a log's path for sbatch, which replaces %j by the job's number."""
    return str(folder).replace("%", "%%") + f"/{name}-%j.log"


def _job(plan: SubmissionPlan, job_id: str, folder: Path) -> SubmittedJob[Any]:
    options = {name: value for word in plan.options for name, _, value in [word.partition("=")]}
    substitutes = {
        "%": "%",
        "j": job_id,
        "A": job_id,
        "x": options["--job-name"],
        "u": os.environ.get("USER", ""),
    }

    def path(pattern: str) -> Path:
        found = re.sub(r"%(.)", lambda match: substitutes.get(match[1], match[0]), pattern)
        return Path(options.get("--chdir", Path.cwd())) / found

    stdout = path(options["--output"])
    stderr = path(options["--error"]) if "--error" in options else stdout
    return SubmittedJob(
        job_id=job_id, folder=folder, stdout_file=stdout, stderr_file=stderr, script=plan.script
    )


def _keep(job: SubmittedJob[Any]) -> SubmittedJob[Any]:
    """Write the job's number where `SubmittedJob.load` finds it."""
    process = None if job.process is None else dataclasses.asdict(job.process)
    content = {"job_id": job.job_id, "script": job.script, "process": process}
    logs = {"stdout": str(job.stdout_file), "stderr": str(job.stderr_file)}
    write_json(job.folder / JOB, {**content, **logs})
    return job


@contextlib.contextmanager
def _call_files(call: _Call) -> Iterator[None]:
    """Write the call; remove it again if nothing was submitted. It stays where that is not known."""
    folder = call.folder
    try:
        pickled = cloudpickle().dumps((call.function, call.args))
    except Exception as error:
        raise UsageError(f"the function or its arguments cannot be pickled: {error}") from error
    created = make_private_dir(call.directory)
    created = [*make_private_dir(folder), *created]
    try:
        write_private(folder / CALL, pickled)
        places = [str(Path(place).absolute()) for place in sys.path]
        write_json(folder / CALL_INFO, {"sys_path": places})
        yield
    except (SlurmUnavailable, KeyboardInterrupt):
        raise
    except BaseException:
        if not (folder / JOB).exists():
            for name in (CALL, CALL_INFO):
                (folder / name).unlink(missing_ok=True)
            remove_empty_dirs(created)
        raise


# --------------------------------------------------------------------------------------- on this machine


def _local_command(call: _Call, min_gpus: int | None, max_gpus: int | None, *, in_place: bool) -> list[str]:
    if min_gpus is not None and max_gpus is not None and min_gpus > max_gpus:
        raise UsageError(f"min_gpus={min_gpus} is above max_gpus={max_gpus}")
    count = max(visible_gpus(os.environ), min_gpus or 1)
    count = count if max_gpus is None else min(count, max_gpus)
    run = [*_pollux(), "run", f"--checkpoint-dir={call.directory}"]
    flags = ["--in-place"] if in_place else []
    return [*run, f"--nproc-per-node={count}", *flags, "--", *_replica_command(call.folder)]


def _start_here(command: Sequence[str], call: _Call) -> SubmittedJob[Any]:
    """Start the processes; they go on when this process ends, as those of a job of Slurm do."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    stdout, stderr = call.folder / "stdout.log", call.folder / "stderr.log"
    process = spawn(call.name, command, environ=environ, output=stdout, error_output=stderr)
    return _keep(
        SubmittedJob(
            job_id=f"local-{call.identifier}",
            folder=call.folder,
            stdout_file=stdout,
            stderr_file=stderr,
            script=shlex.join(command) + "\n",
            process=process,
        )
    )
