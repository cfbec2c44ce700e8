"""Check nodes for `pollux doctor`: do they share checkpoint folders, reach the store, agree on the time?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pollux_slurm.agent.checkpoints.folder_permissions import who_else_may_write
from pollux_slurm.daemon.doctor.findings import Finding, Verdict
from pollux_slurm.errors import PolluxError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.slurm.commands.node_probe import NodeOutput
from pollux_slurm.text import some_of

# Clocks are compared to a second, beside the time that srun itself takes.
_MAX_SKEW_S = 2.0
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFolder:
    """A folder that all nodes should share. `mark` is a file in it, and `word` its content."""

    folder: Path
    mark: Path
    word: str


def probe(folders: Sequence[tuple[Path, str]], reach_store: Callable[[], None], *, now: float) -> str:
    """Return, as one line of JSON, what this node sees. Runs on a node.

    `folders` are marks with their expected content. Beside each mark, a file is created and removed.
    """
    try:
        reach_store()
        store = ""
    except PolluxError as error:
        store = str(error)
    return json.dumps(
        {"time": now, "store": store, "folders": [_complaint(mark, word) for mark, word in folders]}
    )


def _complaint(mark: Path, word: str) -> str:
    try:
        if mark.read_text(encoding="utf-8") != word:
            return "another folder has that path"
    except OSError as error:
        return f"what this host wrote is not seen ({error.strerror})"
    mine = mark.with_name(f"{mark.name}.node")
    try:
        mine.touch(exist_ok=False)
        mine.unlink()
    except FileExistsError:
        return ""  # another node has just created it: the folder is shared
    except OSError as error:
        return f"nothing can be written ({error.strerror})"
    return ""


def examine_nodes(
    answers: Sequence[NodeOutput], folders: Sequence[SharedFolder], *, num_nodes: int
) -> Iterator[Finding]:
    """Check what each node answered; `num_nodes` is the number of nodes in the cluster."""
    answered: list[tuple[NodeOutput, dict[str, Any]]] = []
    failed: dict[str, list[str]] = {}
    for answer in answers:
        content = _content(answer, len(folders))
        if content is None:
            failed.setdefault(answer.error_text or "an unreadable answer", []).append(answer.node)
        else:
            answered.append((answer, content))
    yield Finding(
        name="nodes",
        verdict=Verdict.WARN if failed or not answers else Verdict.OK,
        text=f"{len(answered)} of {len(answers)} nodes that were asked answered, of {num_nodes} in all"
        + "".join(f"; {some_of(nodes, _MAX_NAMED)}: {why}" for why, nodes in failed.items()),
        cure=""
        if answers and not failed
        else "check why no job of this user runs pollux there, or try again when "
        "nodes are free: pollux must be installed on them at the same path",
    )
    if not answered:
        return
    yield _store(answered)
    for place, folder in enumerate(folders):
        yield _folder(folder.folder, place, answered)
    yield _clocks(answered)


def examine_writers(folder: Path) -> Finding:
    """Check whether users could replace each other's folders in a folder for checkpoints."""
    others = who_else_may_write(folder.absolute(), is_parent_folder=True)
    if others is None:
        text = "no user can replace others' folders in it"
        return Finding(name=f"writers of {folder}", verdict=Verdict.OK, text=text)
    return Finding(
        name=f"writers of {folder}",
        verdict=Verdict.WARN,
        text=f"{others}: they can replace others' checkpoints, from which jobs resume",
        cure="set the sticky bit (chmod +t), or give each user a folder of their own",
    )


def _content(answer: NodeOutput, num_folders: int) -> dict[str, Any] | None:
    """Return a node's answer, None where it is not one of `probe`."""
    if answer.error_text:
        return None
    try:
        found = parse_json(answer.output.strip().splitlines()[-1])
        texts = (found["store"], *found["folders"])
        whole = all(isinstance(text, str) for text in texts) and len(texts) == 1 + num_folders
        is_time = isinstance(found["time"], int | float) and math.isfinite(found["time"])
    except (ValueError, IndexError, KeyError, TypeError, OverflowError):
        return None
    return found if whole and is_time and isinstance(found["folders"], list) else None


def _store(answered: Sequence[tuple[NodeOutput, dict[str, Any]]]) -> Finding:
    failed = [(answer.node, content["store"]) for answer, content in answered if content["store"]]
    return Finding(
        name="store from nodes",
        verdict=Verdict.FAIL if failed else Verdict.OK,
        text=f"not reached from {some_of([node for node, _ in failed], _MAX_NAMED)}: {failed[0][1]}"
        if failed
        else f"reached from {len(answered)} nodes",
        cure="jobs there train on, but cannot report and are not moved: check the network, pg_hba.conf and "
        "the URL that nodes use (on the node: pollux config check)"
        if failed
        else "",
    )


def _folder(folder: Path, place: int, answered: Sequence[tuple[NodeOutput, dict[str, Any]]]) -> Finding:
    failed = [(answer.node, content["folders"][place]) for answer, content in answered]
    failed = [(node, why) for node, why in failed if why]
    return Finding(
        name=f"folder {folder}",
        verdict=Verdict.FAIL if failed else Verdict.OK,
        text=f"not shared with {some_of([node for node, _ in failed], _MAX_NAMED)}: {failed[0][1]}"
        if failed
        else f"shared with {len(answered)} nodes",
        cure="a job that is moved would not find its checkpoint: keep checkpoints on a file system that all "
        "nodes mount (pollux sbatch --checkpoint-dir=DIR)"
        if failed
        else "",
    )


def _clocks(answered: Sequence[tuple[NodeOutput, dict[str, Any]]]) -> Finding:
    skews = {
        answer.node: content["time"] - min(max(content["time"], answer.asked_at), answer.answered_at)
        for answer, content in answered
    }
    off = {node: skew for node, skew in skews.items() if abs(skew) > _MAX_SKEW_S}
    worst = max(skews.values(), key=abs)
    return Finding(
        name="clocks of nodes",
        verdict=Verdict.WARN if off else Verdict.OK,
        text=f"{some_of(off, _MAX_NAMED)} differ from this host's by up to {worst:+.0f} s"
        if off
        else f"{len(answered)} nodes agree with this host's to {_MAX_SKEW_S:g} s beside srun's own time",
        cure="run NTP on all nodes: Slurm and reports go by their clocks" if off else "",
    )


def examine_checkpoints(
    blocked_s: Sequence[float], *, kill_wait_s: float | None, checkpoint_timeout_s: float
) -> Iterator[Finding]:
    """Compare how long checkpoints blocked jobs with the time that Slurm and the daemon allow."""
    if not blocked_s:
        return
    longest_s = max(blocked_s)
    is_late = kill_wait_s is not None and longest_s > kill_wait_s
    is_near = longest_s > checkpoint_timeout_s / 2
    cures = []
    if is_late:
        cures.append(
            f"set KillWait to {2 * longest_s:.0f} or more: an external requeue or preemption leaves no more "
            "than that for a checkpoint"
        )
    if is_near:
        cures.append(f"set daemon.checkpoint_timeout_s to {3 * longest_s:.0f} or more")
    left = "" if kill_wait_s is None else f"KillWait is {kill_wait_s:g} s, "
    yield Finding(
        name="checkpoint times",
        verdict=Verdict.WARN if cures else Verdict.OK,
        text=f"the longest of {len(blocked_s)} blocked a job for {longest_s:.1f} s; {left}"
        f"daemon.checkpoint_timeout_s {checkpoint_timeout_s:g} s",
        cure="; ".join(cures),
    )
