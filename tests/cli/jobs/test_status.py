"""What `pollux status` shows, from a real store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pollux_slurm.model import (
    Allocation,
    BatchChoice,
    BatchLimits,
    Decision,
    GoodputModel,
    JobDecision,
    JobState,
    JobTerms,
    JobWarning,
    Problem,
)
from pollux_slurm.now.cluster import read_cluster
from pollux_slurm.now.json_forms import job_as_dict
from pollux_slurm.now.tables import job_columns
from pollux_slurm.store import open_store
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import (
    CheckpointConfirmation,
    JobObservation,
    JobRegistration,
    Report,
    RunPhase,
)
from tests.cli.inside import pollux

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
TOKEN = "1000-" + "0123456789abcdef" * 4
HOSTILE_NAME = "[red]x[/] \x1b[31m'; DROP TABLE jobs; --"


@pytest.fixture
def url(store_url: str) -> str:
    """A store with one running, reporting job and one waiting one with a hostile name."""
    store = open_store(store_url)
    registrations = [
        JobRegistration(
            slurm_job_id=job_id,
            terms=JobTerms(token_sha256=sha256, user_id=1000, min_gpus=1, max_gpus=8),
            name=name,
            user_name="ann",
            user_id=1000,
            account="physics",
            partition="main",
            cpus_per_gpu=1,
            memory_per_gpu_mb=0,
            submitted_at=NOON,
        )
        for job_id, sha256, name in (("7", hash_token(TOKEN), "train"), ("8", "cd" * 32, HOSTILE_NAME))
    ]
    store.jobs.register(registrations, at=NOON)
    allocation = Allocation.of({"n0": 4})
    store.jobs.observe(
        [
            JobObservation(
                slurm_job_id="7",
                state=JobState.RUNNING,
                allocation=allocation,
                started_at=NOON,
                ended_at=None,
            )
        ],
        at=NOON,
    )
    store.agent.report(
        TOKEN,
        Report(
            run_number=0,
            restart_count=0,
            sequence=1,
            phase=RunPhase.TRAINING,
            gpus_per_node=(4,),
            model=GoodputModel(limits=BatchLimits(initial_batch_size=64, max_batch_size=512)),
            batch=BatchChoice(global_batch_size=256, atomic_batch_size=64, accumulation_steps=0),
            throughput=1000.0,
            efficiency=0.5,
            num_steps=10,
            epoch=3,
            total_epochs=20,
            first_step_s=4.0,
            checkpoint=CheckpointConfirmation(request_id=None, blocked_s=0.1, size_bytes=302_000_000),
        ),
        at=NOON + timedelta(seconds=30),
    )
    decision = JobDecision(
        job_id="7",
        allocation=allocation,
        speedup=1.75,
        goodput=500.0,
        penalty=1.0,
        batch=None,
        bound_by="exploration",
        runner_up=None,
        runner_up_speedup=None,
    )
    store.rounds.record(
        Problem(nodes=(), jobs=()),
        Decision(jobs=(decision,), fitness=1.75, solver="test"),
        shadow=False,
        at=NOON + timedelta(seconds=60),
    )
    store.close()
    return store_url


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")


def test_that_json_has_all_that_programs_need(url: str) -> None:
    first, second = json.loads(pollux("status", "--json", "--store", url).stdout)
    assert (first["slurm_job_id"], first["state"], first["num_gpus"]) == ("7", "running", 4)
    assert (first["allocation"], first["global_batch_size"]) == ({"n0": 4}, 256)
    assert (first["goodput"], first["speedup"], first["restarts"]) == (500.0, 1.75, 0)
    assert (first["epoch"], first["total_epochs"], first["bound_by"]) == (3, 20, "exploration")
    assert (second["slurm_job_id"], second["state"], second["goodput"]) == ("8", "pending", None)
    assert (first["checkpoint_bytes"], second["checkpoint_bytes"]) == (302_000_000, None)
    assert second["name"].startswith("[red]x[/]")


def test_that_the_table_shows_jobs_and_escapes_a_hostile_name(url: str) -> None:
    shown = pollux("status", "--store", url).stdout
    line = next(line for line in shown.splitlines() if line.startswith("7 "))
    for text in ("train", "running", "256", "500", "1.75", "3/20", "302 MB", "n0:4", "bound by exploration"):
        assert text in line
    assert "\x1b" not in shown
    assert "[red]x[/] \N{REPLACEMENT CHARACTER}[31m'; DROP …" in shown


def test_that_measurements_of_other_gpus_are_not_shown(url: str) -> None:
    store = open_store(url)
    moved = JobObservation(
        slurm_job_id="7",
        state=JobState.RUNNING,
        allocation=Allocation.of({"n1": 2}),
        started_at=NOON + timedelta(seconds=90),
        ended_at=None,
        restart_count=1,
    )
    store.jobs.observe([moved], at=NOON + timedelta(seconds=91))
    (shown,) = read_cluster(store, now=NOON, job_id="7").jobs
    now = read_cluster(store, now=NOON)
    cells = {column.heading: column.text_of(column.of(shown)) for column in job_columns(now)}
    store.close()
    assert (cells["GPUS"], cells["BATCH"], cells["GOODPUT/s"], cells["EPOCH"]) == ("2", "–", "–", "3/20")
    found = job_as_dict(shown, NOON)
    unknown = ("global_batch_size", "throughput", "predicted_throughput", "efficiency", "goodput")
    assert [found[name] for name in unknown] == [None] * 5
    assert (found["epoch"], found["reported_at"]) == (3, "2026-01-01T12:00:30+00:00")
    assert "measured" not in pollux("explain", "7", "--store", url).stdout


def test_that_one_job_can_be_selected(url: str) -> None:
    (only,) = json.loads(pollux("status", "7", "--json", "--store", url).stdout)
    assert only["slurm_job_id"] == "7"


@pytest.mark.parametrize("job_id", ["9", "'; DROP TABLE jobs; --", ""])
def test_that_an_unknown_job_is_one_clear_line(url: str, job_id: str) -> None:
    done = pollux("status", job_id, "--store", url)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1


def test_that_a_store_without_a_schema_is_an_error_with_the_command_to_type(tmp_path: Path) -> None:
    done = pollux("status", "--store", f"sqlite:///{tmp_path}/none.db")
    assert done.returncode == 1
    assert "pollux db init" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_that_a_job_with_a_warning_is_marked_and_explained(url: str) -> None:
    assert " !" not in pollux("status", "--store", url).stdout
    store = open_store(url)
    warned = Report(
        run_number=0,
        restart_count=0,
        sequence=2,
        phase=RunPhase.TRAINING,
        gpus_per_node=(4,),
        warnings=(JobWarning.REPLICAS_DIFFER,),
    )
    store.agent.report(TOKEN, warned, at=NOON + timedelta(seconds=90))
    store.close()
    shown = pollux("status", "--store", url).stdout
    assert "running !" in next(line for line in shown.splitlines() if line.startswith("7 "))
    assert f"! job 7: {JobWarning.REPLICAS_DIFFER.sentence} (cure: pollux explain 7)" in shown.splitlines()
    first, second = json.loads(pollux("status", "--json", "--store", url).stdout)
    assert second["warnings"] == []
    assert first["warnings"] == [
        {
            "warning": "replicas_differ",
            "run": 1,
            "first_seen_at": "2026-01-01T12:01:30+00:00",
            "meaning": JobWarning.REPLICAS_DIFFER.sentence,
            "cure": JobWarning.REPLICAS_DIFFER.cure,
        }
    ]
    explained = pollux("explain", "7", "--store", url).stdout
    assert JobWarning.REPLICAS_DIFFER.sentence in explained
    assert JobWarning.REPLICAS_DIFFER.cure in explained


def test_that_watch_prints_again_and_again_without_control_characters_in_a_pipe(url: str) -> None:
    command = [sys.executable, "-m", "pollux_slurm", "status", "--watch", "--every", "0.5", "--store", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        seen = []
        for line in watching.stdout:
            seen.append(line)
            if sum(" every 0.5 s; end: Ctrl-C" in one for one in seen) == 3:
                break
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=60) == 0
    assert sum(line.startswith("7 ") for line in seen) == 2
    assert "\x1b" not in "".join(seen)


def test_that_watch_and_json_exclude_each_other(url: str) -> None:
    done = pollux("status", "--watch", "--json", "--store", url)
    assert done.returncode != 0
    assert "exclude each other" in done.stderr


def test_that_a_terminal_with_another_encoding_gets_escapes(url: str) -> None:
    printed = "from pollux_slurm.cli.shared.settings_and_store import print_text; print_text('n0 → n1')"
    for arguments, found in (
        (("-m", "pollux_slurm", "status", "--store", url), b"\\xd7SHARE"),
        (("-c", printed), b"n0 \\u2192 n1"),
    ):
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
            capture_output=True,
            timeout=300,
        )
        assert (done.returncode, done.stderr, done.stdout.isascii()) == (0, b"", True)
        assert found in done.stdout
