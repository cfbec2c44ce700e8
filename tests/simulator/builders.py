"""Traces of a synthetic application, small enough to verify results manually."""

from __future__ import annotations

from pathlib import Path

from pollux_slurm.simulator import Application, WorkloadJob, read_application


def write_traces(folder: Path) -> Path:
    """Write an application with batch sizes 8 and 32 and two epochs of 100 and 50 units of progress.

    A step takes 1 s on one GPU, 0.5 s on each other placement, whatever the batch: the part of it that is
    synchronisation is 0.1 s there.
    """
    folder.mkdir(parents=True)
    lines = ["placement,local_bsz,step_time,sync_time"]
    for placement in ("1", "2", "3", "4", "11", "13", "22", "44"):
        step_s, sync_s = (1.0, 0.0) if placement == "1" else (0.5, 0.1)
        lines += [f"{placement},{size},{step_s},{sync_s}" for size in (2, 16)]
    (folder / "placements.csv").write_text("\n".join(lines) + "\n")
    rows = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    rows += [f"{n},{4 * n},{size},{0.1 * n},0.05" for n in (8, 16) for size in (2, 16)]
    (folder / "scalability.csv").write_text("\n".join(rows) + "\n")
    for size in (8, 32):
        epochs = [(100.0, 100 * 8 // size), (150.0 + size / 32, 150 * 8 // size)]
        body = "".join(f"{progress},{steps},0.5,1.0,{8 / size * 3}\n" for progress, steps in epochs)
        text = "progress,iteration,metric,grad_sqr,grad_var\n" + body
        (folder / f"validation-{size}.csv").write_text(text)
    return folder


def made_application(folder: Path) -> Application:
    return read_application(write_traces(folder / "made"))


def made_job(name: str, *, at_s: float = 0.0, num_replicas: int = 1, batch_size: int = 8) -> WorkloadJob:
    return WorkloadJob(
        name=name,
        submitted_s=at_s,
        application="made",
        num_replicas=num_replicas,
        batch_size=batch_size,
    )
