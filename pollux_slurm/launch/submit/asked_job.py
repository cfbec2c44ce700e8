"""What the user of `pollux sbatch` asks for, as far as it can be an adaptive job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.durations import DURATION_FORMS, parse_duration
from pollux_slurm.errors import UsageError
from pollux_slurm.launch.submit.given_words import (
    POLLUX_NAMES,
    last_value,
    read_script,
    refuse_misplaced_words,
)
from pollux_slurm.launch.submit.other_launchers import refusal_of_script
from pollux_slurm.slurm.parsing.comment_terms import MAX_GPUS
from pollux_slurm.slurm.sbatch.batch_script import BatchScript
from pollux_slurm.slurm.sbatch.options import GivenOption, ParsedWords, parse_directives
from pollux_slurm.slurm.sbatch.request import SbatchRequest, time_limit_s
from pollux_slurm.store.access.secrets_in_url import lines_with_passwords

_LONGEST_TOTAL_S = 999_999_999  # nine digits in the Comment: thirty years


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedJob:
    """What the user asks for: the options, the script and its arguments, and what sbatch reads in both.

    `name` is the job's, as sbatch would choose it. `slice_s` and `total_s` limit one run and all runs
    together, None without --total-time.
    """

    options: Sequence[GivenOption]
    min_gpus: int | None
    max_gpus: int | None
    name: str
    script: BatchScript
    arguments: tuple[str, ...]
    request: SbatchRequest
    slice_s: int | None
    total_s: int | None


def read_asked_job(
    parsed: ParsedWords, *, environ: Mapping[str, str], cwd: Path, read_stdin: Callable[[], bytes]
) -> AskedJob:
    """Read the words and the script. Raises `UsageError` for what cannot be an adaptive job."""
    options, rest = parsed.options, parsed.rest
    refuse_misplaced_words(parsed, cwd=cwd, environ=environ)
    min_gpus, max_gpus = _count(options, "min-gpus"), _count(options, "max-gpus")
    if min_gpus is not None and max_gpus is not None and min_gpus > max_gpus:
        raise UsageError(f"--min-gpus {min_gpus} is above --max-gpus {max_gpus}")
    name, script = read_script(options, rest, cwd=cwd, environ=environ, read_stdin=read_stdin)
    request = SbatchRequest.of(
        [option for option in options if option.name not in POLLUX_NAMES | {"wrap"}],
        environ,
        parse_directives(script.directives),
    )
    _refuse_what_cannot_be_adaptive(request)
    _refuse_passwords(script)
    if (refusal := refusal_of_script(script.body)) is not None:
        raise UsageError(refusal)
    slice_s, total_s = _run_and_total_time_s(request, last_value(options, "total-time"))
    return AskedJob(
        options=options,
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        name=name,
        script=script,
        arguments=rest[1:],
        request=request,
        slice_s=slice_s,
        total_s=total_s,
    )


def _count(options: Sequence[GivenOption], name: str) -> int | None:
    text = last_value(options, name)
    return None if text is None else gpu_count(text, f"--{name}")


def gpu_count(text: str, what: str) -> int:
    """Read a bound on GPUs; raises `UsageError`."""
    if not re.fullmatch(r"[1-9][0-9]{0,6}", text) or int(text) > MAX_GPUS:
        raise UsageError(f"{what} takes a whole number from 1 to {MAX_GPUS}, not {text!r}")
    return int(text)


def _run_and_total_time_s(request: SbatchRequest, total: str | None) -> tuple[int | None, int | None]:
    """Return the time limits of one run and of all runs together; (None, None) without --total-time."""
    if total is None:
        return None, None
    # A plain number is in minutes, as in Slurm.
    duration, time = parse_duration(total), request.value("time")
    total_s = time_limit_s(total) if duration is None else duration.total_seconds()
    slice_s = time_limit_s(time)
    if not total_s or total_s > _LONGEST_TOTAL_S:
        raise UsageError(
            f"--total-time takes {DURATION_FORMS}, or a time as sbatch's --time does (minutes, "
            "minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, "
            f"days-hours:minutes:seconds), not {total!r}"
        )
    if slice_s is None:
        given = "" if time is None else f"; {request.source_of('time')} {time} is not a limit"
        raise UsageError(f"--total-time needs --time, the limit of each run, such as --time=4:00:00{given}")
    if total_s <= slice_s:
        raise UsageError(
            f"--total-time {total} is not above --time {time}: leave it out, or give the time that all "
            "runs together may take"
        )
    return int(slice_s), int(total_s)


def _refuse_what_cannot_be_adaptive(request: SbatchRequest) -> None:
    if request.given("array"):
        raise UsageError(
            f"{request.source_of('array')}: the tasks of an array cannot be adaptive, since they share one "
            "Comment; call pollux sbatch once for each of them"
        )
    if request.effective_name("requeue", "no-requeue") == "no-requeue":
        raise UsageError(
            f"{request.source_of('no-requeue')}: an adaptive job changes its size by requeue; remove the "
            "option, or use plain sbatch for a job of fixed size"
        )
    if request.given("exclusive") and request.value("exclusive") is None:
        raise UsageError(
            f"{request.source_of('exclusive')}: an adaptive job owns single GPUs of its nodes; remove the "
            "option, or use plain sbatch for a job of fixed size"
        )
    for name in ("uid", "gid"):
        if request.given(name):
            raise UsageError(
                f"{request.source_of(name)}: the job's token must belong to the user that it runs as; submit "
                "it as that user"
            )


def _refuse_passwords(script: BatchScript) -> None:
    lines = lines_with_passwords(script.interpreter + script.head + script.body)
    if lines:
        raise UsageError(
            f"line {lines[0]} of the script contains a database URL with a password, and Slurm stores and "
            "shows scripts; put the password into ~/.pgpass (mode 0600), and leave it out of the URL"
        )
