"""The words after `pollux sbatch`: our options, the script among them, and words in a place that is wrong."""

from __future__ import annotations

import difflib
import itertools
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pollux_slurm.errors import UsageError
from pollux_slurm.slurm.sbatch.batch_script import BatchScript, parse_script
from pollux_slurm.slurm.sbatch.options import (
    GivenOption,
    ParsedWords,
    SbatchOption,
    Takes,
    is_abbreviation,
    unknown_option,
)

POLLUX_OPTIONS = (
    SbatchOption("min-gpus"),
    SbatchOption("max-gpus"),
    SbatchOption("checkpoint-dir"),
    SbatchOption("total-time"),
    SbatchOption("min-run"),
    SbatchOption("kind"),
    SbatchOption("finish-by"),
    SbatchOption("in-place", Takes.NOTHING),
    SbatchOption("no-in-place", Takes.NOTHING),
    SbatchOption("dry-run", Takes.NOTHING),
    SbatchOption("allow-unconfirmed", Takes.NOTHING),
)
POLLUX_NAMES = frozenset(option.name for option in POLLUX_OPTIONS)
_FLAGS = frozenset(option.name for option in POLLUX_OPTIONS if option.takes is Takes.NOTHING)
# From this similarity to one of ours, an unknown option is refused. Sites may add options to sbatch.
_MIN_SIMILARITY = 0.85


def last_value(options: Sequence[GivenOption], name: str) -> str | None:
    """Return the value of an option where it is given last; None without it."""
    return next((option.value for option in reversed(options) if option.name == name), None)


def read_script(
    options: Sequence[GivenOption],
    rest: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    read_stdin: Callable[[], bytes],
) -> tuple[str, BatchScript]:
    """Return the job name that sbatch would choose, and the script: from --wrap, a file, or stdin."""
    wrapped = last_value(options, "wrap")
    if wrapped is not None:
        if rest:
            raise UsageError(f"--wrap is a script of its own: it cannot be given with the script {rest[0]!r}")
        text = f"#!/bin/sh\n# made of --wrap by pollux sbatch\n\n{wrapped}\n"
        return "wrap", parse_script(text, source="the script of --wrap")
    if rest and rest[0] == ":":
        raise UsageError("a heterogeneous job (options : options) cannot be adaptive; use plain sbatch")
    if not rest:
        return "sbatch", parse_script(_decoded(read_stdin()), source="the script on standard input")
    folder = cwd / (last_value(options, "chdir") or ".")
    path = _find_script(rest[0], folder, environ)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"script {rest[0]} cannot be read: {error.strerror}") from None
    return path.name, parse_script(_decoded(content), source=rest[0])


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _find_script(name: str, folder: Path, environ: Mapping[str, str]) -> Path:
    """Search as sbatch does: the path itself, the working directory, and for a bare name PATH."""
    here = folder / name
    if name.startswith(("/", ".")) or _is_file(here):
        return here
    for place in environ.get("PATH", "").split(os.pathsep):
        if place and _is_file(folder / place / name):
            return folder / place / name
    return here


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no name that a file could have
        return False


def _decoded(content: bytes) -> str:
    """Decode any bytes to a text that encodes to the same bytes."""
    return content.decode("utf-8", "surrogateescape")


def refuse_misplaced_words(parsed: ParsedWords, *, cwd: Path, environ: Mapping[str, str]) -> None:
    """Raise `UsageError` where sbatch would take a word for something else than its writer means."""
    refuse_misspelled_options(parsed.options)
    if not parsed.after_dashes:
        folder = cwd / (last_value(parsed.options, "chdir") or ".")
        _refuse_unknown_option_before_the_script(parsed, folder, environ)
        _refuse_options_after_the_script(parsed.rest)
    for option in parsed.options:
        if option.name in _FLAGS and option.value is not None:
            raise UsageError(f"option --{option.name} takes no value")


def refuse_misspelled_options(options: Sequence[GivenOption]) -> None:
    """Raise `UsageError` for an option unknown to sbatch that is similar to one of ours."""
    for option in options:
        written = option.words[0].partition("=")[0] if option.name is None and option.words else ""
        if not written.startswith("--") or is_abbreviation(written[2:]):
            continue
        meant = difflib.get_close_matches(written[2:], sorted(POLLUX_NAMES), n=1, cutoff=_MIN_SIMILARITY)
        if meant:
            raise UsageError(
                f"there is no option {written}; do you mean --{meant[0]}? (pollux sbatch --help)"
            )


def _refuse_unknown_option_before_the_script(
    parsed: ParsedWords, folder: Path, environ: Mapping[str, str]
) -> None:
    """Raise `UsageError` where the word after an unknown option may be its value.

    It is the script if it is one and the word after it is none. sbatch, which knows the options of its
    plug-ins, must not take another word for the script than we do.
    """
    option = unknown_option(parsed)
    if option is None:
        return
    are_scripts = [_is_script(_find_script(word, folder, environ)) for word in parsed.rest[:2]]
    if are_scripts not in ([True], [True, False]):
        word = shlex.quote(parsed.rest[0])
        raise UsageError(
            f"{option} is not an option of sbatch itself, so that {word} may be its value or the script; "
            f"nothing was submitted. If it takes a value, write {option}={word}; if not, put -- before the "
            f"script: pollux sbatch [options] {option} -- {word}"
        )


def _refuse_options_after_the_script(rest: Sequence[str]) -> None:
    """Raise `UsageError` for one of our options among the script's arguments, where it would have no effect.

    A script may have such an option of its own: a `--` before the script, or before the option, allows it.
    """
    for word in itertools.takewhile(lambda word: word != "--", rest[1:]):
        if word.startswith("--") and word[2:].partition("=")[0] in POLLUX_NAMES:
            option, script = word.partition("=")[0], shlex.quote(rest[0])
            raise UsageError(
                f"{option} comes after the script {rest[0]}, where sbatch passes all words to the script; "
                f"nothing was submitted. Put {option} before the script; if it is the script's own "
                f"option, put -- before the script: pollux sbatch [options] -- {script} {option}"
            )
