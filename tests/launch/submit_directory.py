"""A working directory on a real cluster for tests of submission and launch, and the script of their ranks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pollux_slurm.config import SlurmConfig
from pollux_slurm.model import JobState, SlurmJob
from pollux_slurm.slurm import SlurmClient, connect
from tests.waiting import wait_until

# Each rank writes its environment to RUN.RANK.json, then acts by its second argument.
RANK = """
import json, os, signal, sys, time
def leave(name, text):
    with open(name + ".new", "w") as file: file.write(text)
    os.rename(name + ".new", name)
run = os.environ["POLLUX_RESTART_COUNT"]
def save(*_):
    time.sleep(0.5)  # a checkpoint takes its time
    leave(f"{run}.{os.environ['RANK']}.saved", "")
    sys.exit(0 if sys.argv[1] == "wait" else 99)
signal.signal(signal.SIGTERM, save)
leave(f"{run}.{os.environ['RANK']}.json", json.dumps({**os.environ, "PID": str(os.getpid())}))
if sys.argv[1] == "fail":
    if os.environ["RANK"] == sys.argv[2]:
        while len([name for name in os.listdir() if name.endswith(".json")]) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.05)
        sys.exit(int(sys.argv[3]))
    time.sleep(600)
while sys.argv[1] == "wait" and not os.path.exists("go"):
    time.sleep(0.05)
"""
BODY = f'#!/bin/bash\n{sys.executable} -m pollux_slurm run -- {sys.executable} -S rank.py "$@"\n'


@dataclass
class SubmitDirectory:
    """A working directory on the cluster, and the jobs submitted from it."""

    folder: Path
    environ: dict[str, str]
    slurm: SlurmClient
    jobs: list[str] = field(default_factory=list)

    def run(self, *argv: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.folder,
            env={**self.environ, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def pollux_sbatch(
        self, *words: str, environ: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = self.run(sys.executable, "-m", "pollux_slurm", "sbatch", *words, environ=environ)
        self.jobs += re.findall(r"^(?:Submitted batch job )?([0-9]+)$", done.stdout, re.MULTILINE)
        return done

    def submit(self, *words: str, body: str = BODY, environ: dict[str, str] | None = None) -> str:
        (self.folder / "train.sbatch").write_text(body)
        done = self.pollux_sbatch("-o", "log", *words, environ=environ)
        assert done.returncode == 0, done.stderr
        return self.jobs[-1]

    def job(self, job_id: str) -> SlurmJob:
        job = self.slurm.read_job(job_id)
        assert job is not None
        return job

    def wait(self, job_id: str, state: JobState, *, timeout_s: float = 300) -> SlurmJob:
        wait_until(
            lambda: self.job(job_id).state is state,
            timeout_s=timeout_s,
            what=f"job {job_id} to be {state.value}; its log: {self.log()}",
        )
        return self.job(job_id)

    def log(self) -> str:
        log = self.folder / "log"
        return log.read_text() if log.exists() else "none"

    def ranks(self, run: int, count: int) -> list[dict[str, str]]:
        """Wait for all ranks of a run, and return their environments, in rank order."""
        files = [self.folder / f"{run}.{rank}.json" for rank in range(count)]
        # A file that was just made is empty.
        wait_until(
            lambda: all(file.exists() and file.stat().st_size for file in files),
            timeout_s=120,
            what=f"{count} ranks; log: {self.log()}",
        )
        assert len(list(self.folder.glob(f"{run}.*.json"))) == count
        return [json.loads(file.read_text()) for file in files]

    def saved(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.saved"))


def make_submit_directory(folder: Path, env: dict[str, str]) -> SubmitDirectory:
    folder.mkdir(exist_ok=True)
    (folder / "rank.py").write_text(RANK)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "POLLUX", "CUDA"))}
    environ = {**plain, **env}
    return SubmitDirectory(folder=folder, environ=environ, slurm=connect(SlurmConfig(), environ))
