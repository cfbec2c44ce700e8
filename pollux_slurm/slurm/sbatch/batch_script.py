"""Split a batch script as sbatch does: interpreter, head of comments and directives, body."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pollux_slurm.errors import UsageError

_DIRECTIVE = "#SBATCH"
_PBS_OR_BSUB_NAME = re.compile(r"#(PBS\s.*-N|BSUB\s.*-J)")
_BLANKS = " \t\n\v\f"  # C's; Unicode has more
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "ksh93", "mksh", "zsh", "rbash", "busybox"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScript:
    """A script in three parts, which joined give the whole text.

    `interpreter` is the `#!` line, `head` the blank and comment lines after it, `body` the rest from the
    first command on; each with its line ends. `directives` are the words of the #SBATCH lines of the head.
    `names_job` is set when a #PBS or #BSUB line of the head, which sbatch reads too, names the job.
    """

    interpreter: str
    head: str
    body: str
    directives: tuple[str, ...]
    names_job: bool


def parse_script(text: str, *, source: str) -> BatchScript:
    """Split a script. `source` names it in messages.

    Raises `UsageError` for these:

    - a text that sbatch or a shell cannot run as a batch script
    - an interpreter that is not a POSIX shell (it has no `export`)
    - parts of a heterogeneous job
    """
    if "\r\n" in text:
        raise UsageError(f"{source} has DOS line ends; run: sed -i 's/\\r$//' {source}")
    # str.splitlines also splits at form feeds and the like, which do not end a line for a shell.
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    if "\0" in text or not text.startswith("#!"):
        raise UsageError(
            f"{source} does not look like a batch script: its first line must be #! and the path of a shell"
        )
    _require_shell(lines[0], source)
    end = 1
    while end < len(lines) and lines[end].lstrip(_BLANKS)[:1] in ("", "#"):
        end += 1
    words: list[str] = []
    for number, line in enumerate(lines[1:end], start=2):
        if line.startswith(_DIRECTIVE):
            found = directive_words(line[len(_DIRECTIVE) :])
            if found in (["hetjob"], ["packjob"]):
                raise UsageError(
                    f"{source}, line {number}: a heterogeneous job cannot be adaptive; use plain sbatch"
                )
            words.extend(found)
    return BatchScript(
        interpreter=lines[0],
        head="".join(lines[1:end]),
        body="".join(lines[end:]),
        directives=tuple(words),
        names_job=any(_PBS_OR_BSUB_NAME.match(line) for line in lines[1:end]),
    )


def directive_words(text: str) -> list[str]:
    """Split the text after #SBATCH into words, by sbatch's own rules (measured on 22.05.8).

    Quotes of either kind may begin anywhere in a word, and blanks between them belong to it. A backslash
    escapes the next character, within quotes too, but never a blank outside of them. A `#` outside of quotes
    ends the line, even within a word.
    """
    words: list[str] = []
    word, has_begun = "", False
    quote = ""
    escaped = False
    for letter in text.rstrip("\n"):
        if letter in _BLANKS and not quote:
            if has_begun:
                words.append(word)
            word, has_begun, escaped = "", False, False
        elif letter == "\\" and not escaped:
            escaped = True
        elif quote and letter == quote and not escaped:
            quote = ""
        elif not quote and letter in "\"'" and not escaped:
            quote, has_begun = letter, True
        elif not quote and letter == "#" and not escaped:
            break
        else:
            word += letter
            has_begun, escaped = True, False
    return [*words, word] if has_begun else words


def _require_shell(first_line: str, source: str) -> None:
    words: Sequence[str] = first_line[2:].split()
    if words and PurePosixPath(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words:
        raise UsageError(f"{source}: its first line names no interpreter; write #!/bin/bash")
    shell = PurePosixPath(words[0]).name
    if shell not in _SHELLS:
        raise UsageError(
            f"{source} is run by {shell}, not by a POSIX shell: put it into a shell script whose body is "
            f"`pollux run -- {shell} {source}`, and submit that"
        )
