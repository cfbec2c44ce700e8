"""What becomes of a job and its files where sbatch fails: Slurm is a folder of scripts."""

from __future__ import annotations

import errno
import sys
import tempfile
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.token import token_sha256
from pollux_slurm.config import Config
from pollux_slurm.errors import LaunchError, SlurmCommandError, SlurmUnavailable
from pollux_slurm.launch.submit.submission import run_sbatch, submit_plan
from pollux_slurm.slurm.commands.runner import CommandRunner
from tests.launch.submit.test_submission_plan import TOKEN, plan

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
REFUSED = "sbatch: error: Batch job submission failed: Invalid partition name specified"
MINE = f"pollux/1:sha256={token_sha256(TOKEN)},uid=1000,min=1"
OTHER = f"pollux/1:sha256={token_sha256('1000-' + '1' * 64)},uid=1000,min=1"


class Site:
    """Scripts of sbatch and squeue in a folder, and what the user is told."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.cwd, self.said = folder / "bin", folder / "work", list[str]()
        self.bin.mkdir()
        self.cwd.mkdir()
        self.environ = {
            "PATH": "/usr/bin:/bin",
            "SLURM_RESTART_COUNT": "3",
            "MINE": "x",
            "SLURM_STEP_ID": "0",
        }
        self.runner = CommandRunner(environ=self.environ, bin_dir=self.bin)

    def command(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def run(self, *words: str) -> int:
        return run_sbatch(
            plan([*words], cwd=self.cwd, config=Config()),
            token=TOKEN,
            runner=self.runner,
            environ=self.environ,
            cwd=self.cwd,
            say=self.said.append,
        )

    def submit(self) -> str:
        return submit_plan(
            plan(["--parsable"], cwd=self.cwd, config=Config()),
            token=TOKEN,
            runner=self.runner,
            environ=self.environ,
            cwd=self.cwd,
            say=self.said.append,
        )

    def files(self) -> list[str]:
        return sorted(path.suffix for path in self.cwd.rglob("*") if path.is_file())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(("words", "printed"), [((), "Submitted batch job 41\n"), (("--parsable",), "41\n")])
def test_that_a_job_that_slurm_has_accepted_keeps_its_files_although_sbatch_timed_out(
    site: Site, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], printed: str
) -> None:
    site.command("sbatch", f"echo '{TIMED_OUT}' >&2; exit 1")
    site.command(
        "squeue", f"printf '%s\n' '40                  {OTHER}' '41                  note' ' {MINE}'"
    )
    assert site.run(*words) == 0
    seen = capfd.readouterr()
    assert seen.out == printed
    assert seen.err == TIMED_OUT + "\n"
    assert site.said == [
        "sbatch has failed, and Slurm has accepted the job all the same: it is job 41",
    ]
    assert site.files() == [".sbatch", ".token"]


@pytest.mark.parametrize("squeue", ["exit 0", "echo 'slurm_load_jobs error: timed out' >&2; exit 1"])
def test_that_the_files_stay_where_nobody_knows_whether_slurm_has_the_job(site: Site, squeue: str) -> None:
    site.command("sbatch", f"echo '{TIMED_OUT}' >&2; exit 1")
    site.command("squeue", squeue)
    assert site.run() == 1
    assert "whether Slurm has accepted the job is not known: look for it with squeue --me" in site.said[0]
    assert site.files() == [".sbatch", ".token"]


def test_that_python_gets_the_same_job_the_same_doubt_and_the_same_refusal(site: Site) -> None:
    site.command("sbatch", f"echo '{TIMED_OUT}' >&2; exit 1")
    site.command("squeue", "exit 1")
    with pytest.raises(SlurmUnavailable, match=r"Socket timed out.*its files stay in"):
        site.submit()
    assert site.files() == [".sbatch", ".token"]
    for file in [*site.cwd.rglob("pollux-*.*")]:
        file.unlink()
    site.command("squeue", f"echo '41                  {MINE}'")
    assert site.submit() == "41"
    for file in [*site.cwd.rglob("pollux-*.*")]:
        file.unlink()
    site.command("squeue", f"echo '40                  {OTHER}'")
    site.command("sbatch", f"echo '{REFUSED}' >&2; exit 1")
    with pytest.raises(SlurmCommandError, match="has refused the job: Batch job submission failed: Invalid"):
        site.submit()
    assert site.files() == []
    # A banner of the site is no number, and an answer without one is not a refusal.
    site.command("sbatch", "echo '*** 2 nodes are down ***'; echo; echo '42;big'")
    assert site.submit() == "42"


def test_that_a_refusal_leaves_no_files_and_has_sbatchs_words_and_code(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    site.command("sbatch", f"echo '{REFUSED}' >&2; exit 3")
    site.command("squeue", f"echo '40                  {OTHER}'")
    assert site.run() == 3
    assert capfd.readouterr().err == REFUSED + "\n"
    assert (site.files(), site.said) == ([], [])
    # Slurm's words are known to be a refusal also where the queue cannot be read.
    (site.bin / "squeue").unlink()
    assert site.run() == 3
    assert site.files() == []


def test_that_a_job_does_not_inherit_runs_and_step_of_the_job_that_submits_it(site: Site) -> None:
    site.command("sbatch", f"env > {site.cwd}/seen; echo 41")
    site.run()
    seen = (site.cwd / "seen").read_text().splitlines()
    assert "MINE=x" in seen
    assert not any(line.startswith(("SLURM_RESTART_COUNT", "SLURM_STEP")) for line in seen)


# What another user may do who may write above: they wait for the script, and exchange the job's folder.
EXCHANGE = """
script=$(find {cwd} -name 'pollux-*.sbatch')
folder=$(dirname "$script")
mv "$folder" "$folder-away"
mkdir "$folder"
echo theirs > "$script"
for last; do :; done
cat "$last" > {cwd}/seen
rm -r "$folder"
mv "$folder-away" "$folder"
echo 41
"""


@pytest.mark.parametrize("is_python", [False, True])
def test_that_sbatch_reads_what_was_decided_whatever_becomes_of_the_jobs_folder(
    site: Site, *, is_python: bool
) -> None:
    site.command("sbatch", EXCHANGE.format(cwd=site.cwd))
    if is_python:
        assert site.submit() == "41"
    else:
        assert site.run() == 0
    kept = next(site.cwd.rglob("pollux-*.sbatch")).read_text()
    assert (site.cwd / "seen").read_text() == kept
    assert "pollux run" in kept
    assert site.files() == ["", ".sbatch", ".token"]


def test_that_a_program_before_sbatch_that_closes_files_finds_the_script(site: Site) -> None:
    inner = site.bin / "inner"
    inner.write_text(f'#!/bin/sh\nfor last; do :; done\ncat "$last" > {site.cwd}/seen; echo 41\n')
    inner.chmod(0o755)
    wrapper = site.bin / "sbatch"
    code = f"import subprocess, sys; sys.exit(subprocess.run(['{inner}', *sys.argv[1:]]).returncode)"
    wrapper.write_text(f"#!{sys.executable}\n{code}\n")
    wrapper.chmod(0o755)
    assert site.run() == 0
    assert (site.cwd / "seen").read_text() == next(site.cwd.rglob("pollux-*.sbatch")).read_text()


def test_that_without_room_for_a_temporary_file_nothing_is_submitted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    site.command("sbatch", "echo 41")
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(LaunchError, match=r"nothing was submitted.*No space left on device.*set TMPDIR"):
        site.run()
    assert site.files() == []


def test_that_an_ordinary_job_is_submitted_where_a_group_may_write(site: Site) -> None:
    folder = site.cwd / "lab"
    folder.mkdir()
    folder.chmod(0o2775)
    site.command("sbatch", "echo 41")
    assert site.run("--checkpoint-dir", "lab") == 0
    assert site.files() == [".sbatch", ".token"]
