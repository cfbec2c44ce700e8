"""The kind of a job: which earlier jobs of its owner ran the same training, and can teach it.

A kind is a digest of the script's commands, their arguments and the folder that they begin in: two projects
may have the same words for different trainings. What differs from run to run without changing
the training is left out: seeds, names of runs, and where results go. Comments and sbatch's directives do not
count either. The digest stands in the job's Comment, so no argument is stored in clear.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from pollux_slurm.errors import UsageError
from pollux_slurm.slurm.parsing.comment_terms import KIND

_DIGITS = 16
# Names of options, settings (`trainer.seed=3`) and variables (`SEED=3`) that differ between equal trainings.
_FREE = (
    r"(?:(?:[\w.-]*[._-])?(?:seed|random[_-]?state"
    r"|(?:run|exp|experiment|job|study|project|group|wandb)[_.-]?(?:name|id|dir)"
    r"|(?:out|output|save|log|logging|work|results?|checkpoints?|ckpt|tensorboard|default[_-]root)"
    r"[_-]?(?:dir|directory|path|file|folder)|logdir|outdir|resume(?:[_-]from[\w-]*)?)"
    r"|name|tags?|notes|comment|out|output|results?)"
)
# A name with a value: after a blank or "=" for an option, after "=" alone for a setting or a variable.
_WITH_VALUE = re.compile(
    rf"""(?P<name>(?:(?<=\s)|^)(?:--?{_FREE}(?:\s*=\s*|\s+(?!-))|\+{{0,2}}{_FREE}=))"""
    r"""(?P<value>"[^"]*"|'[^']*'|[^\s;&|]+)""",
    re.IGNORECASE | re.MULTILINE,
)
# An option joined to its value, which may also be the next word.
_JOINED = re.compile(r"(?<!\S)(--[\w.-]+)=")


def chosen_kind(named: str | None, script: str, arguments: Iterable[str], *, folder: Path) -> str | None:
    """Return the kind that `--kind` names, else that of the script; None for no kind. Raises `UsageError`."""
    return kind_of(script, arguments, folder=folder) if named is None else checked_kind(named)


def kind_of(script: str, arguments: Iterable[str] = (), *, folder: Path) -> str:
    """Return the kind of jobs that run `script` with `arguments` in `folder`: 16 hexadecimal digits."""
    lines = (line.strip() for line in script.replace("\\\n", " ").splitlines())
    text = "\n".join(" ".join(line.split()) for line in lines if line and not line.startswith("#"))
    # Blanks within an argument do not divide it: the whole name of a run is left out, not its first word.
    words = " ".join("_".join(word.split()) for word in arguments)
    content = "\0".join([*map(_without_free_values, (text, words)), str(folder.resolve())])
    return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]


def checked_kind(name: str) -> str | None:
    """Return the kind that an owner names; None for the empty name: no kind. Raises `UsageError`."""
    if not name:
        return None
    if not KIND.fullmatch(name):
        raise UsageError(
            f"--kind {name!r}: write up to 32 letters, digits, dots, dashes and underscores, or '' for none"
        )
    return name


def _without_free_values(text: str) -> str:
    """Return `text` without free names and values: a run with a seed is of the same kind as one without.

    An option has a blank before its value, however it was written.
    """
    rest = _JOINED.sub(r"\1 ", _WITH_VALUE.sub(" ", text))
    lines = (" ".join(line.split()) for line in rest.splitlines())
    return "\n".join(line for line in lines if line)
