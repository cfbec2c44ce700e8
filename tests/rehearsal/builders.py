"""Runs of a rehearsal, built by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pollux_slurm.agent.rehearsal_protocol import Stop, StopMethod, StopMoment
from pollux_slurm.rehearsal.rehearse import RehearsalRuns
from pollux_slurm.rehearsal.runs.script_run import RunOutcome, ScriptRun

MIDDLE = Stop(moment=StopMoment.STEP, method=StopMethod.REQUEST, epoch=0, loader="loader-0", position=10)
EPOCH_END = Stop(moment=StopMoment.EPOCH_END, method=StopMethod.REQUEST, epoch=0)


def micro_batch(start: int, size: int, *, epoch: int = 0, loop: int = 0) -> dict[str, Any]:
    return {
        "kind": "micro_batch",
        "loader": "loader-0",
        "epoch": epoch,
        "loop": loop,
        "start": start,
        "size": size,
    }


def loop(
    length: int | None = 20,
    *,
    epoch: int = 0,
    number: int = 0,
    loader: str = "loader-0",
    order: str | None = "abc",
    drops_last: bool = False,
) -> dict[str, Any]:
    return {
        "kind": "loop",
        "loader": loader,
        "epoch": epoch,
        "loop": number,
        "length": length,
        "order": order,
        "drops_last": drops_last,
    }


def loop_end(*, epoch: int = 0, number: int = 0, steps: int = 2) -> dict[str, Any]:
    return {"kind": "loop_end", "loader": "loader-0", "epoch": epoch, "loop": number, "steps": steps}


def loop_left(*, epoch: int = 0, number: int = 0, steps: int = 2) -> dict[str, Any]:
    return {**loop_end(epoch=epoch, number=number, steps=steps), "kind": "loop_left"}


def snapshot(
    moment: str,
    *,
    epoch: int = 0,
    in_loop: bool = True,
    position: int = 0,
    objects: dict[str, Any] | None = None,
    variables: dict[str, str] | None = None,
    tensors: dict[str, str] | None = None,
    weights: Sequence[float] = (1.0, 2.0),
    models: Sequence[str] = ("model-0",),
    layers: Sequence[str] = ("Linear",),
    precisions: Sequence[str] = ("torch.float32",),
) -> dict[str, Any]:
    return {
        "kind": "snapshot",
        "moment": moment,
        "epoch": epoch,
        "step": 10 * epoch + position,
        "precisions": list(precisions),
        "in_loop": in_loop,
        **({"position": position} if moment == "epoch" else {}),
        "objects": objects or {},
        "variables": variables or {},
        "tensors": tensors or {},
        "models": {name: list(weights) for name in models},
        "layers": list(layers),
    }


def state(*numbers: float, kind: str = "optimizer", type_: str = "Adam") -> dict[str, Any]:
    return {"kind": kind, "type": type_, "numbers": list(numbers)}


def error(kind: str, message: str, *, time: float = 1.0, has_stepped: bool = False) -> dict[str, Any]:
    return {
        "kind": "error",
        "time": time,
        "type": kind,
        "message": message,
        "is_ours": kind == "TrainingError",
        "traceback": f"Traceback\n{kind}: {message}\n",
        "file": "/home/me/train.py",
        "line": 41,
        "has_stepped": has_stepped,
    }


def stepped(
    step: int, *, weights: Sequence[float] = (1.0, 2.0), rates: dict[str, float] | None = None
) -> dict[str, Any]:
    return {"kind": "stepped", "step": step, "models": {"model-0": list(weights)}, "rates": rates or {}}


START = {"kind": "start", "in_place": False, "backend": "gloo"}
FIRST_STEP = {"kind": "first_step", "age_s": 1.0}
CHECKPOINT = {"kind": "checkpoint", "time": 0.0, "blocked_s": 0.1, "size_bytes": 1000}


def script_run(
    *events: Sequence[dict[str, Any]],
    stop: Stop | None = None,
    outcome: RunOutcome = RunOutcome.FINISHED,
    exit_code: int = 0,
    number: int = 0,
    varies_batch: bool = False,
) -> ScriptRun:
    """Return a run of as many processes as there are lists of events; with a `stop`, one that was stopped."""
    return ScriptRun(
        number=number,
        num_processes=len(events),
        stop=stop,
        varies_batch=varies_batch,
        outcome=outcome if stop is None else RunOutcome.STOPPED,
        exit_code=exit_code,
        wall_s=1.0,
        ended_at=0.0,
        events=tuple(tuple(rank) for rank in events),
        log=Path("/dev/null"),
    )


def rehearsal_runs(
    *runs: ScriptRun,
    skipped: int = 0,
    in_place: Sequence[ScriptRun] = (),
    processes: Sequence[int] = (1,),
    rounding_run: ScriptRun | None = None,
) -> RehearsalRuns:
    """Return a rehearsal with these runs of a fixed batch size; `in_place` is one that was regrouped."""
    return RehearsalRuns(
        command=("python", "train.py"),
        folder=Path("/tmp/rehearsal"),
        processes=tuple(processes),
        num_gpus=0,
        fixed_batch_runs=runs,
        varying_batch_runs=(),
        in_place_runs=tuple(in_place),
        rounding_run=rounding_run,
        skipped=skipped,
        time_s=300.0,
        wall_s=12.0,
    )
