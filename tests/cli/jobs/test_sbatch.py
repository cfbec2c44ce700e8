"""`pollux sbatch` as typed, without Slurm: dry runs, help, and errors in one line."""

from __future__ import annotations

import dataclasses
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.store import open_store
from pollux_slurm.store.maintenance.administration import add_login, init_store
from tests.store.builders import MODEL, observation, registration, report, token_of
from tests.store.postgres import PostgresServer, postgres_of_test

PLAIN = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "POLLUX"))}
PLAIN["POLLUX_STORE_URL"] = "sqlite:////srv/pollux.db"
ME = pwd.getpwuid(os.getuid()).pw_name
OTHER_USER = {"user_id": 54321, "user_name": "ada"}
SCRIPT = "#!/bin/bash\n#SBATCH --time=10\npollux run -- python train.py\n"


def pollux(
    *words: str, cwd: Path, environ: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pollux_slurm", "sbatch", *words],
        env={**PLAIN, **(environ or {})},
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_that_a_dry_run_shows_script_and_command_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text(SCRIPT)
    done = pollux("-p", "gpu", "--min-gpus", "2", "--dry-run", "train.sbatch", "-x", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"pollux: checkpoints take up to 3 times the size of one in \S+/pollux-checkpoints/train-\w{8}, "
        r"where [0-9.]+ .B are free\n",
        done.stderr,
    )
    assert "nothing was submitted" in done.stdout
    assert "#SBATCH --gpus=2\n" in done.stdout
    assert "\npollux run -- python train.py\n" in done.stdout
    command = done.stdout.splitlines()[-1]
    assert command.startswith("sbatch -p gpu --comment=pollux/1:sha256=")
    assert command.endswith("-x")
    assert [path.name for path in tmp_path.iterdir()] == ["train.sbatch"]


def test_that_the_image_of_a_container_is_not_taken_for_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text(SCRIPT)
    (tmp_path / "x.sqsh").write_bytes(b"hsqs")
    done = pollux("--container-image", "x.sqsh", "--dry-run", "train.sbatch", "-x", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("sbatch --container-image x.sqsh --comment=pollux/1:")
    warning, _budget = done.stderr.splitlines()
    assert "--container-image: the batch script itself will run in the container" in warning
    assert "pollux run --srun-args --container-image=x.sqsh -- python" in warning
    flag = pollux("--dry-run", "--site-flag", "--", "train.sbatch", cwd=tmp_path)
    assert "sbatch --site-flag --comment=pollux/1:" in flag.stdout


def test_that_a_submission_without_a_store_says_what_that_means(tmp_path: Path) -> None:
    done = pollux("--dry-run", "--wrap=pollux run -- true", cwd=tmp_path, environ={"POLLUX_STORE_URL": ""})
    first = done.stderr.splitlines()[0]
    assert first.startswith("pollux: no store is set: the job trains, but is neither moved nor measured")
    assert "pollux init" in first
    with_store = pollux("--dry-run", "--wrap=pollux run -- true", cwd=tmp_path)
    assert "no store" not in with_store.stderr


def test_that_a_dry_run_in_place_shows_the_script_of_a_wing(tmp_path: Path) -> None:
    words = ["--in-place", "--dry-run", "-C", "a100", "-t", "10", "--wrap=pollux run -- true"]
    lines = pollux(*words, cwd=tmp_path, environ={"PATH": str(tmp_path)}).stdout.splitlines()
    at = lines.index("#   sbatch --constraint=a100 --gpus=1 --cpus-per-gpu=1 --time=10")
    assert lines[at + 1] == "#   #!/bin/sh"
    assert "wing_program import main" in lines[at + 2]
    assert lines[at + 2].endswith(".order")


@pytest.mark.parametrize(
    ("answer", "is_refused"),
    [
        ("allocation failure: Invalid feature specification", True),
        ("sbatch: error: invalid partition specified: nowhere", True),
        ("allocation failure: Requested node configuration is not available", False),
        ("allocation failure: Unable to contact slurm controller (connect failure)", False),
    ],
)
def test_that_wings_that_slurm_never_starts_are_refused_at_submission(
    tmp_path: Path, answer: str, is_refused: bool
) -> None:
    (tmp_path / "sbatch").write_text(
        f'#!/bin/sh\ncase "$*" in *--test-only*) echo "{answer}" >&2; exit 1;; esac\n'
        "echo Submitted batch job 1\n"
    )
    (tmp_path / "sbatch").chmod(0o755)
    environ = {"PATH": str(tmp_path)}
    done = pollux("--in-place", "-C", "x", "--wrap=pollux run -- true", cwd=tmp_path, environ=environ)
    assert done.returncode == int(is_refused), done.stderr
    if is_refused:
        assert "Slurm would refuse the job's wings" in done.stderr
        assert "nothing was submitted. They ask for: --constraint=x" in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["sbatch"]
    else:
        assert "Submitted batch job 1" in done.stdout


def test_that_a_shell_whose_cluster_is_gone_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'fatal: no configuration source' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    environ = {"PATH": str(tmp_path), "SLURM_CONF": str(tmp_path / "slurm.conf")}
    done = pollux("--wrap=pollux run -- true", cwd=tmp_path, environ=environ)
    assert done.returncode != 0
    assert "slurm.conf: no such file; is the sandbox or cluster" in done.stderr.splitlines()[-1]


def test_that_the_script_may_come_from_stdin(tmp_path: Path) -> None:
    done = pollux("--dry-run", cwd=tmp_path, stdin=SCRIPT)
    assert "pollux run -- python train.py" in done.stdout
    assert "--job-name=sbatch" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--min-gpus=3", "--max-gpus=2", "train.sbatch"], "--min-gpus 3 is above --max-gpus 2"),
        (["nothing.sbatch"], "script nothing.sbatch cannot be read: No such file or directory"),
        (["--array=1-3", "train.sbatch"], "array"),
        (["train.py"], "pollux run -- python3 train.py"),
        (["dos.sbatch"], "DOS line ends"),
        (["-N"], "option -N needs a value"),
        (
            ["--site-image", "x.sqsh", "train.sbatch"],
            "If it takes a value, write --site-image=x.sqsh; if not",
        ),
        (
            ["--site-flag", "train.sbatch", "train.sbatch"],
            "[options] --site-flag -- train.sbatch",
        ),
        (["train.sbatch", "--dry-run"], "put -- before the script: pollux sbatch [options] -- train.sbatch"),
    ],
)
def test_that_an_error_is_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "train.sbatch").write_text(SCRIPT)
    (tmp_path / "train.py").write_text("#!/usr/bin/env python3\n")
    (tmp_path / "dos.sbatch").write_bytes(b"#!/bin/bash\r\ntrue\r\n")
    before = sorted(tmp_path.iterdir())
    done = pollux(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert sorted(tmp_path.iterdir()) == before


def test_that_an_unreadable_script_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "secret.sbatch").mkdir()
    done = pollux("secret.sbatch", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "pollux: script secret.sbatch cannot be read: Is a directory\n",
    )


def test_that_without_slurm_an_error_says_so_and_no_files_are_left(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text(SCRIPT)
    done = pollux("train.sbatch", cwd=tmp_path, environ={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "no sbatch on PATH" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["train.sbatch"]


def test_that_a_folder_that_cannot_be_created_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text(SCRIPT)
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = pollux("--checkpoint-dir=train.sbatch/x", "train.sbatch", cwd=tmp_path, environ=environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be created" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_that_help_shows_our_options_and_examples(tmp_path: Path, word: str) -> None:
    done = pollux("-p", "x", word, cwd=tmp_path, environ={"COLUMNS": "120"})
    assert done.returncode == 0
    for option in (
        "--min-gpus",
        "--max-gpus",
        "--checkpoint-dir",
        "--total-time",
        "--allow-unconfirmed",
        "--dry-run",
    ):
        assert option in done.stdout
    assert "pollux sbatch train.sbatch" in done.stdout


def remember_a_job(url: str, user: dict[str, Any]) -> None:
    """Record a job of the kind gpt2 that somebody, or else whoever runs this test, had on up to 8 GPUs."""
    now = datetime.now(timezone.utc)
    with closing(open_store(url)) as store:
        owner = {"user_id": os.getuid(), "user_name": ME, **user}
        details = {**owner, "submitted_at": now - timedelta(hours=1)}
        store.jobs.register([registration(1, terms={"kind": "gpt2"}, **details)], at=now)
        store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=now)], at=now)
        seen = dataclasses.replace(MODEL, max_gpus_seen=8)
        store.agent.report(token_of(1, owner["user_id"]), report(1, model=seen), at=now)


def waits_for_the_daemon(cwd: Path, url: str, **settings: str) -> bool:
    """Return whether a job of the kind gpt2 that requests one GPU is submitted with a begin time."""
    (cwd / "train.sbatch").write_text(SCRIPT)
    environ = {"POLLUX_STORE_URL": url, **{f"POLLUX_{key}": value for key, value in settings.items()}}
    done = pollux("--dry-run", "--kind=gpt2", "train.sbatch", cwd=cwd, environ=environ)
    assert done.returncode == 0
    return "--begin=now+" in done.stdout


@pytest.mark.parametrize(
    ("settings", "user", "ttl_s", "waits"),
    [
        ({}, {}, 600, True),
        ({}, {}, -600, False),
        ({"KINDS_SHARED_BY": "nobody"}, {}, 600, False),
        ({"KINDS_SHARED_BY": "user"}, OTHER_USER, 600, False),
        ({"KINDS_SHARED_BY": "account"}, OTHER_USER, 600, True),
        ({"KINDS_EXPIRES_S": "7200"}, {}, 600, True),
        ({"KINDS_EXPIRES_S": "3000"}, {}, 600, False),
        ({"DAEMON_SHADOW": "true"}, {}, 600, False),
    ],
)
def test_that_a_job_waits_for_a_larger_start_only_where_kinds_teach(
    store_url: str,
    tmp_path: Path,
    settings: dict[str, str],
    user: dict[str, Any],
    ttl_s: float,
    waits: bool,
) -> None:
    remember_a_job(store_url, user)
    with closing(open_store(store_url)) as store:
        now = datetime.now(timezone.utc)
        store.lease.acquire("ctl:77:a", ttl_s=ttl_s, at=now, interval_s=60, watch_s=10)
    assert waits_for_the_daemon(tmp_path, store_url, **settings) is waits


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_of_test() as server:
        yield server


@pytest.mark.parametrize(
    ("login", "settings", "user", "waits"),
    [
        (ME, {}, {}, True),
        (ME, {"KINDS_EXPIRES_S": "3000"}, {}, False),
        (ME, {"KINDS_SHARED_BY": "account"}, OTHER_USER, False),
        ("jobs", {}, {}, False),
    ],
)
def test_that_a_persons_login_on_postgresql_knows_what_the_persons_jobs_used(
    postgres: PostgresServer,
    tmp_path: Path,
    login: str,
    settings: dict[str, str],
    user: dict[str, Any],
    waits: bool,
) -> None:
    """The shared login of jobs, which is nobody's, knows nothing."""
    admin = postgres.create_database("kinds")
    try:
        init_store(admin)
        roles = ("pollux_agent", "pollux_reader") if login == ME else ("pollux_agent",)
        add_login(admin, login, shared=login != ME, connections=5, roles=roles)
        remember_a_job(admin, user)
        assert waits_for_the_daemon(tmp_path, postgres.url("kinds", login=login), **settings) is waits
    finally:
        postgres.drop_database("kinds")
