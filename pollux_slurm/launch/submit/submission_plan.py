"""Decide what `pollux sbatch` submits: an ordinary job, never held, with its terms in its Comment.

Nothing here has side effects: `--dry-run` prints the plan, `submission.py` submits it.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pollux_slurm.agent.environment.token import token_sha256, token_user_id
from pollux_slurm.config import Config
from pollux_slurm.durations import parse_finish_by, parse_min_run
from pollux_slurm.errors import UsageError
from pollux_slurm.launch.kind import chosen_kind
from pollux_slurm.launch.submit.anchor_request import (
    AnchorRequest,
    divide,
    not_in_place_because,
    warnings_in_place,
)
from pollux_slurm.launch.submit.asked_job import AskedJob, read_asked_job
from pollux_slurm.launch.submit.checkpoint_folder import checkpoints_folder
from pollux_slurm.launch.submit.given_words import (
    POLLUX_NAMES,
    last_value,
)
from pollux_slurm.launch.submit.other_launchers import launcher_without_run
from pollux_slurm.launch.submit.request_warnings import (
    missing_log_folders,
    request_warnings,
    signal_warnings,
)
from pollux_slurm.launch.submit.room_for_wings import Room
from pollux_slurm.launch.submit.start_size import start_gpus
from pollux_slurm.launch.submit.wing_request import ANCHOR_VARIABLE, WingRequest, wing_script
from pollux_slurm.model import PLACED_WITHIN_S, JobTerms
from pollux_slurm.rendering import render
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.slurm.sbatch.batch_script import BatchScript
from pollux_slurm.slurm.sbatch.options import (
    GivenOption,
    ParsedWords,
)
from pollux_slurm.slurm.sbatch.request import (
    SbatchRequest,
    count_requested_gpus,
    cpus_per_gpu_of_tasks,
    sigterm_lead_s,
    time_limit_s,
)
from pollux_slurm.store.access.secrets_in_url import holds_password
from pollux_slurm.text import plural

TEMPLATE = "adaptive.sbatch.j2"
_CPU_OPTIONS = ("cpus-per-gpu", "cpus-per-task", "mincpus")
_NO_STORE = (
    "no store is set: the job trains, but is neither moved nor measured, unless its nodes' settings name a "
    "store; to make one: pollux init"
)
_NO_RUN = (
    "the script's body has no pollux run: unless a command in it calls that, the job is neither moved nor "
    "measured; write: pollux run -- python train.py"
)
_RELATIVE_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:)(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionPlan:
    """One submission that was decided and not made yet.

    `options` are sbatch's arguments before the script, `arguments` those after it. `creates_job` is False for
    `--test-only`, which must write nothing. With `waits`, sbatch ends when the job does. `warnings` are for
    the user. A job in place has `wings`, whose request is in `wing_file`, and `wing_script`; its anchor's
    sbatch must not read `hidden_variables`. `clusters` is the value of that option.
    """

    script: str
    options: tuple[str, ...]
    arguments: tuple[str, ...]
    checkpoint_dir: Path
    token_file: Path
    script_file: Path
    terms: JobTerms
    is_dry_run: bool
    creates_job: bool
    waits: bool
    warnings: tuple[str, ...] = ()
    wings: WingRequest | None = None
    wing_script: str = ""
    hidden_variables: frozenset[str] = frozenset()
    clusters: str | None = None

    @property
    def wing_file(self) -> Path:
        return self.token_file.with_suffix(".wing")

    @property
    def first_wing_options(self) -> list[str]:
        """Return sbatch's options for the wing that the job starts with, but for its name and its files."""
        if self.wings is None:
            return []
        limit_s = self.wings.time_limit_s
        time = [] if limit_s is None else [f"--time={max(math.ceil(limit_s / 60), 1)}"]
        return [*self.wings.start_options(), *time]

    def as_shell_commands(self) -> str:
        """Return the plan as shell commands that would submit it."""
        end = "END_OF_SCRIPT"
        while end in self.script:
            end += "_"
        lines = [
            "# pollux sbatch --dry-run: nothing was submitted and nothing was written.",
            "# Each submission makes a token of its own, and the number in the files' names with it.",
            f"mkdir -p -m 700 {shlex.quote(str(self.checkpoint_dir))}",
            f"cat > {shlex.quote(str(self.script_file))} <<'{end}'",
            self.script.removesuffix("\n"),
            end,
            shlex.join(["sbatch", *self.options, str(self.script_file), *self.arguments]),
        ]
        if self.wings is not None:
            lines[2:2] = [
                "#",
                "# The job is an anchor, which takes one CPU. While it runs it submits wings, which have the",
                "# GPUs. The first one, with more options that say whose it is:",
                "#",
                f"#   {shlex.join(['sbatch', *self.first_wing_options])}",
                *(f"#   {line}" for line in self.wing_script.splitlines()),
                "#",
            ]
        return "\n".join(lines) + "\n"


def plan_submission(
    parsed: ParsedWords,
    *,
    environ: Mapping[str, str],
    cwd: Path,
    config: Config,
    token: str,
    identifier: str,
    read_stdin: Callable[[], bytes],
    room_for_wings: Callable[[SbatchRequest], Room] = lambda _request: Room(),
    may_start_larger: Callable[[str, int], bool] = lambda _kind, _num_gpus: False,
    clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> SubmissionPlan:
    """Decide what to submit for words parsed with `POLLUX_OPTIONS` as `exact`. Reads the script.

    `room_for_wings` is asked for a job in place only. Where it has none, the job moves by requeue, and the
    plan warns of it.
    `may_start_larger` tells whether the daemon may start a job of a kind with more than so many GPUs. The job
    then waits a moment for it, unless it is in place, or has a begin time of its own.
    `identifier` distinguishes this submission's files from others in the same checkpoint directory. Raises
    `UsageError` for these:

    - bounds that contradict each other or the requested GPUs
    - a script that cannot be read or cannot be adaptive
    - kinds of jobs that Slurm cannot requeue one by one
    """
    asked = read_asked_job(parsed, environ=environ, cwd=cwd, read_stdin=read_stdin)
    options, script, request = asked.options, asked.script, asked.request
    warnings = [*request_warnings(request)]
    room = room_for_wings(request) if _is_in_place(options, config, asked.total_s) else None
    if room is not None and (because := not_in_place_because(request) or room.none_because):
        room = None
        warnings.append(f"the job moves by requeue, not in place: {because}")
    warnings += signal_warnings(request, script.body) if room is None else warnings_in_place(request)
    warnings += _warnings_of_missing_parts(script, config)
    terms = _terms(asked, token=token, cwd=cwd, in_place=room is not None, clock=clock)
    default_dir = checkpoints_folder(config.checkpoints, cwd) / f"{_as_file_name(asked.name)}-{identifier}"
    checkpoint_dir = absolute(last_value(options, "checkpoint-dir"), cwd=cwd) or default_dir
    warnings += missing_log_folders(request, cwd, made=checkpoint_dir)
    token_file = checkpoint_dir / f"pollux-{identifier}.token"
    num_gpus = start_gpus(request, terms)
    exports = _exports(checkpoint_dir, token_file, environ=environ, cwd=cwd, config=config)
    anchor = None
    if room is not None:
        anchor = divide(request, script.head, num_gpus=num_gpus, config=config.moves, room=room)
        warnings += anchor.notes
    own_options = _own_options(asked, terms)
    if (
        terms.kind
        and anchor is None
        and not request.given("begin")
        and (terms.max_gpus is None or terms.max_gpus > num_gpus)
        and may_start_larger(terms.kind, num_gpus)
    ):
        own_options.append(f"--begin=now+{PLACED_WITHIN_S}")
        warnings.append(
            f"earlier jobs of its kind used more than {plural(num_gpus, 'GPU')}: it waits for at "
            f"most {PLACED_WITHIN_S} s, so that the daemon may start it with more"
        )
    sbatch_options = _sbatch_arguments(options) if anchor is None else anchor.options
    return SubmissionPlan(
        script=_script_text(asked, anchor, exports, token_file, num_gpus=num_gpus, config=config),
        options=(*sbatch_options, *own_options),
        arguments=asked.arguments,
        checkpoint_dir=checkpoint_dir,
        token_file=token_file,
        script_file=checkpoint_dir / f"pollux-{identifier}.sbatch",
        terms=terms,
        is_dry_run=any(option.name == "dry-run" for option in options),
        creates_job=not request.given("test-only"),
        waits=request.given("wait"),
        warnings=tuple(warnings),
        wings=None if anchor is None else anchor.wings,
        wing_script=""
        if anchor is None
        else wing_script(token_file.with_suffix(".order"), config.templates.dir),
        hidden_variables=frozenset() if anchor is None else anchor.hidden_variables,
        clusters=request.value("clusters"),
    )


def _warnings_of_missing_parts(script: BatchScript, config: Config) -> list[str]:
    """Return what keeps a job from being moved, though it trains: no store, or no `pollux run`."""
    found = [] if config.store.url is not None else [_NO_STORE]
    if "pollux" not in script.body:
        launcher = launcher_without_run(script.body)
        found.append(_NO_RUN + (f" in place of {launcher}" if launcher else ""))
    return found


def _terms(
    asked: AskedJob, *, token: str, cwd: Path, in_place: bool, clock: Callable[[], datetime]
) -> JobTerms:
    options = asked.options
    min_run, finish_by = last_value(options, "min-run"), last_value(options, "finish-by")
    return JobTerms(
        token_sha256=token_sha256(token),
        user_id=token_user_id(token),
        min_gpus=asked.min_gpus or 1,
        max_gpus=asked.max_gpus,
        allow_unconfirmed=any(option.name == "allow-unconfirmed" for option in options),
        slice_s=asked.slice_s,
        total_s=asked.total_s,
        in_place=in_place,
        min_run_s=None if min_run is None else parse_min_run(min_run),
        kind=chosen_kind(
            last_value(options, "kind"),
            asked.script.body,
            asked.arguments,
            folder=cwd / (asked.request.value("chdir") or ""),
        ),
        finish_by=None if finish_by is None else parse_finish_by(finish_by, now=clock()),
    )


def _own_options(asked: AskedJob, terms: JobTerms) -> list[str]:
    """Return the options of sbatch with which a job has its terms, and its name where that is not given."""
    found = ["--comment=" + encode_comment(asked.request.value("comment") or "", terms)]
    if not asked.request.given("job-name") and not asked.script.names_job:
        found.append(f"--job-name={asked.name}")
    return found


def _script_text(
    asked: AskedJob,
    anchor: AnchorRequest | None,
    exports: Sequence[tuple[str, str]],
    token_file: Path,
    *,
    num_gpus: int,
    config: Config,
) -> str:
    """Return the job's script: the user's, with the directives and variables of an adaptive job."""
    script, head = asked.script, asked.script.head
    directives = tuple(_directives(asked.request, num_gpus))
    if anchor is not None:
        head, own = anchor.head, {"--requeue", "--open-mode=append"}
        directives = (*(one for one in directives if one in own), *anchor.directives)
        exports = [*exports, (ANCHOR_VARIABLE, str(token_file.with_suffix(".wing")))]
    return render(
        TEMPLATE,
        override_dir=config.templates.dir,
        interpreter=script.interpreter.rstrip("\n"),
        head=head.removesuffix("\n"),
        body=script.body.removesuffix("\n"),
        directives=directives,
        exports=exports,
    )


def _is_in_place(options: Sequence[GivenOption], config: Config, total_s: int | None) -> bool:
    """Return whether the job is to move in place: the last of the two options, else the site's default."""
    asked = [option.name for option in options if option.name in ("in-place", "no-in-place")]
    if asked and asked[-1] == "in-place" and total_s is not None:
        raise UsageError("--in-place: a job with --total-time is requeued for each slice; leave one out")
    return total_s is None and (asked[-1] == "in-place" if asked else config.moves.in_place)


def absolute(folder: str | None, *, cwd: Path) -> Path | None:
    """Return a directory as an absolute path, without resolving symbolic links."""
    if folder is None:
        return None
    if not folder.strip():
        raise UsageError("--checkpoint-dir names no directory")
    return Path(os.path.abspath(cwd / Path(folder).expanduser()))  # noqa: PTH100 - resolve() follows links


def _as_file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", Path(name).stem)[:40].lstrip(".-") or "job"


# ------------------------------------------------------------------------------------- the user's options


def _sbatch_arguments(options: Sequence[GivenOption]) -> list[str]:
    """Return the user's options for sbatch: all but ours, --wrap and --comment."""
    consumed = POLLUX_NAMES | {"wrap", "comment"}
    return [word for option in options if option.name not in consumed for word in option.words]


def _directives(request: SbatchRequest, num_gpus: int) -> list[str]:
    """Return the sbatch options that an adaptive job needs and the user has not given.

    `num_gpus` is what it starts with if it names no number.
    """
    directives = []
    if not request.given("requeue", "no-requeue"):
        directives.append("--requeue")
    if not request.given("open-mode"):
        directives.append("--open-mode=append")  # else a later run overwrites the log
    if not count_requested_gpus(request).is_given:
        directives.append(f"--gpus={num_gpus}")
    if not request.given(*_CPU_OPTIONS):
        # Else the CPUs do not follow the GPUs.
        directives.append(f"--cpus-per-gpu={cpus_per_gpu_of_tasks(request, num_gpus)}")
    if not request.given("signal"):
        limit_s = time_limit_s(request.value("time"))
        directives.append(f"--signal=TERM@{sigterm_lead_s(limit_s)}")
    return directives


# ------------------------------------------------------------------------------------- the job's variables


def _exports(
    checkpoint_dir: Path, token_file: Path, *, environ: Mapping[str, str], cwd: Path, config: Config
) -> list[tuple[str, str]]:
    exports = [("POLLUX_CHECKPOINT_DIR", str(checkpoint_dir)), ("POLLUX_TOKEN_FILE", str(token_file))]
    if (url := _shareable_url(config.store.url, cwd)) is not None:
        exports.append(("POLLUX_STORE_URL", url))
    if environ.get("POLLUX_CONFIG"):
        exports.append(("POLLUX_CONFIG", str(cwd / environ["POLLUX_CONFIG"])))
    return exports


def _shareable_url(url: str | None, cwd: Path) -> str | None:
    """Return the store's URL for the job's script, with an absolute path of an SQLite file.

    None for a URL with a password, since Slurm stores and shows scripts: the job then reads the URL from its
    environment or from the node's settings file.
    """
    if url is None or holds_password(url):
        return None
    relative = _RELATIVE_SQLITE.fullmatch(url)
    return f"{relative[1]}{cwd / relative[2]}" if relative else url
