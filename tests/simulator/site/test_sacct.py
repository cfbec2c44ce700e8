"""What Slurm's accounting writes, as a workload."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from pollux_slurm.cli.simulate.workloads import import_sacct as import_sacct_command
from pollux_slurm.errors import TraceError
from pollux_slurm.simulator import Application, Cluster, read_applications, simulate
from pollux_slurm.simulator.inputs.batch_splits import user_training_time_s
from pollux_slurm.simulator.inputs.generate import JobClass, class_of
from pollux_slurm.simulator.policies import SlurmPolicy
from pollux_slurm.simulator.site.sacct import SacctImport, import_sacct
from tests.published import traces_dir

HEAD = "JobIDRaw|Account|Submit|ElapsedRaw|AllocTRES|State"
ROWS = (
    "4711|vision|2026-01-31T08:00:10|1800|billing=8,cpu=8,gres/gpu:a100=1,gres/gpu=1,mem=64G,node=1|COMPLETED",
    "4712|speech|2026-01-31T08:00:00|7200|billing=32,cpu=32,gres/gpu=4,mem=256G,node=1|TIMEOUT",
    "4713|vision|2026-01-31T08:05:00|36000|gres/gpu:a100=2,gres/gpu:v100=2,node=2|CANCELLED by 1000",
    "4714|vision|2026-01-31T09:00:00|604800|cpu=64,gres/gpu=128,mem=1T,node=32|FAILED",
    "4715|cpu|2026-01-31T09:00:00|600|billing=8,cpu=8,mem=64G,node=1|COMPLETED",
    "4716|vision|2026-01-31T09:00:00|0||CANCELLED by 1000",
    "4717|vision|2026-01-31T09:10:00|30|cpu=4,gres/gpu=1,mem=8G,node=1|RUNNING",
    "4718|vision|2026-01-31T09:11:00|0||PENDING",
)


@functools.cache
def traces() -> Mapping[str, Application]:
    return read_applications(traces_dir())


def read(*lines: str, seed: int = 0) -> SacctImport:
    return import_sacct((line + "\n" for line in lines), traces(), seed=seed)


def test_that_gpu_jobs_get_an_application_of_their_class() -> None:
    found = read(HEAD, *ROWS)
    assert (found.num_without_gpus, found.num_not_ended) == (2, 2)
    by_name = {job.name: job for job in found.jobs}
    assert list(by_name) == ["4712", "4711", "4713", "4714"]
    assert [by_name[name].submitted_s for name in by_name] == [0.0, 10.0, 300.0, 3600.0]
    assert by_name["4711"].application in ("cifar10", "ncf"), "half a GPU-hour"
    assert by_name["4712"].application in ("deepspeech2", "bert"), "8 GPU-hours"
    assert (by_name["4713"].application, by_name["4713"].num_replicas) == ("yolov3", 4)
    assert (by_name["4714"].application, by_name["4714"].num_replicas) == ("imagenet", 64), (
        "as many as measured"
    )
    assert by_name["4712"].account == "speech"


def test_that_the_draw_depends_on_the_job_and_the_seed_only() -> None:
    rows = [f"{number}||{60 * number}|60|gres/gpu=1|COMPLETED" for number in range(1, 400)]
    every = {job.name: job.application for job in read(HEAD, *rows).jobs}
    few = {job.name: job.application for job in read(HEAD, *rows[::3]).jobs}
    assert few.items() <= every.items()
    assert 150 < list(every.values()).count("ncf") < 250
    assert every != {job.name: job.application for job in read(HEAD, *rows, seed=1).jobs}


def test_that_steps_trailing_delimiters_and_array_indices_are_parsed() -> None:
    head = "JobID|JobIDRaw|Submit|ElapsedRaw|AllocTRES|"
    found = read(
        head,
        "12_3|14|1769846400|60|gres/gpu=2|",
        "12_3.batch|14.batch|1769846401|60|gres/gpu=2|",
        "12_4|12|1769846460|60|gres/gpu=2|",
    )
    assert [(job.name, job.submitted_s) for job in found.jobs] == [("14", 0.0), ("12", 60.0)]


def test_that_a_name_in_the_last_column_may_contain_the_delimiter() -> None:
    head = "JobIDRaw|Submit|ElapsedRaw|AllocTRES|JobName"
    assert read(head, "5|2026-01-31T08:00:00|60|gres/gpu=2|a|b|c").jobs[0].num_replicas == 2
    with pytest.raises(TraceError, match="line 2 of sacct's text has 7 fields, its first line 5"):
        read("JobIDRaw|JobName|Submit|ElapsedRaw|AllocTRES", "5|a|b|c|2026-01-31T08:00:00|60|gres/gpu=2")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "its first line must name the columns"),
        ((HEAD,), r"no ended job with GPUs in sacct's text \(0 without, 0 not ended\)"),
        ((HEAD, ROWS[4]), r"\(1 without"),
        (
            ("JobIDRaw|Submit|AllocTRES", "1|2|3"),
            r"no column ElapsedRaw; write it with: SLURM_TIME_FORMAT=%s sacct -a -X -P .*,State$",
        ),
        (("Submit|ElapsedRaw|AllocTRES", "1|2|3"), "no column JobIDRaw"),
        ((HEAD, "5|v|soon|60|gres/gpu=2|COMPLETED"), "line 2 .* Submit is 'soon'"),
        ((HEAD, "5|v|Unknown|60|gres/gpu=2|COMPLETED"), "Submit is 'Unknown'"),
        ((HEAD, "5|v|60|00:01:00|gres/gpu=2|COMPLETED"), "ElapsedRaw is '00:01:00'"),
        ((HEAD, "5|v|60"), "line 2 .* has 3 fields"),
        ((HEAD, ROWS[0], ROWS[0]), "1 job ids occur twice .*, such as 4711: use -X"),
        ((HEAD, ROWS[0], ROWS[0].replace("COMPLETED", "REQUEUED"), ROWS[0]), "1 job ids occur twice"),
    ],
)
def test_that_malformed_text_is_refused_with_its_line(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(*lines)


def test_that_a_missing_column_is_told_with_the_command_of_the_help() -> None:
    with pytest.raises(TraceError) as raised:
        read("JobIDRaw")
    command = str(raised.value).partition(" with: ")[2]
    assert command in " ".join((import_sacct_command.__doc__ or "").split())


RECORDED = Path(__file__).parents[1] / "sacct"


def test_that_what_a_real_sacct_wrote_is_read() -> None:
    """Slurm 22.05.8 with slurmdbd: an array (4), a heterogeneous job (10, 11), none pending in the time."""
    text = (RECORDED / "jobs.txt").read_text()
    found = read(*text.splitlines())
    assert (found.num_without_gpus, found.num_not_ended) == (1, 0)
    shown = {job.name: (job.submitted_s, job.num_replicas) for job in found.jobs}
    assert shown == dict.fromkeys(("2", "3", "6", "10", "11", "12", "13", "4"), (0.0, 1)) | {
        "1": (0.0, 2),
        "9": (0.0, 8),
        "7": (10.0, 1),
    }
    assert {job.account for job in found.jobs} == {"vision"}


def test_that_steps_and_names_of_a_real_sacct_change_nothing() -> None:
    """The same, with local times, job steps, array indices, and a name that contains the delimiter."""
    text = (RECORDED / "steps.txt").read_text()
    assert "|a|b name" in text
    assert "3.0|" in text
    assert "4_2|4|" in text
    assert "10+1|11|" in text
    found, plain = (
        {(job.name, job.submitted_s, job.num_replicas) for job in read(*lines.splitlines()).jobs}
        for lines in (text, (RECORDED / "jobs.txt").read_text())
    )
    assert found == plain


def test_that_the_runs_of_a_requeued_job_are_added_up() -> None:
    """Job 7 ran for 6 s, was requeued ten seconds after its submission, and ran for another 12 s."""
    text = (RECORDED / "duplicates.txt").read_text()
    assert "|REQUEUED" in text
    found = {job.name: job.submitted_s for job in read(*text.splitlines()).jobs}
    assert (len(found), found["7"]) == (11, 0.0)
    rows = ("5|v|100|3600|gres/gpu=4|NODE_FAIL", "5|v|9000|1800|gres/gpu=2|COMPLETED")
    (job,) = read(HEAD, *rows).jobs
    assert job.num_replicas <= 2
    assert job.application in ("deepspeech2", "bert"), "five GPU-hours in all"
    (job,) = read(HEAD, *rows[:1], "5|v|9000|1800||CANCELLED by 0").jobs
    assert job.num_replicas == 4, "as before it was cancelled in the queue"
    assert read(HEAD, ROWS[0], *rows[:1], "5|v|9000|1800|gres/gpu=2|RUNNING").num_not_ended == 1


def philly_like(num_jobs: int) -> list[str]:
    """Return rows whose GPU time has two tails: minutes on one GPU, and weeks on many."""
    rng = random.Random(7)
    rows = []
    for number in range(1, num_jobs + 1):
        gpus = rng.choices([1, 2, 4, 8, 16, 32, 100], [70, 8, 8, 8, 3, 2, 1])[0]
        elapsed_s = max(int(rng.lognormvariate(7.0, 2.2)), 1)
        rows.append(f"{number}||{60 * number}|{elapsed_s}|gres/gpu={gpus}|COMPLETED")
    return rows


def test_that_jobs_keep_their_gpu_time() -> None:
    """Of 2,000 jobs, trained at their sizes: 2 % in all and 5 % by class are allowed, rounding is less."""
    rows = philly_like(2000)
    found = read(HEAD, *rows)
    wanted_s: dict[str, float] = {}
    for row in rows:
        name, _, _, elapsed_s, tres, _ = row.split("|")
        wanted_s[name] = int(elapsed_s) * int(tres.partition("=")[2])
    by_class: dict[JobClass, list[float]] = {}
    for job in found.jobs:
        trained_s = job.num_replicas * user_training_time_s(job, traces()[job.application], 4)
        sums = by_class.setdefault(class_of(wanted_s[job.name] / 3600), [0.0, 0.0])
        sums[0] += trained_s
        sums[1] += wanted_s[job.name]
    assert len(by_class) == 4
    for trained_s, of_class_s in by_class.values():
        assert trained_s == pytest.approx(of_class_s, rel=1e-5)
    assert found.gpu_hours == pytest.approx(sum(wanted_s.values()) / 3600)


def test_that_a_simulation_uses_the_gpu_time_of_sacct() -> None:
    """Where starts cost nothing; jobs end at the second, also those of a few seconds."""
    found = read(HEAD, *philly_like(150))
    cluster = Cluster(num_nodes=64, restart_delay_s=0.0)
    result = simulate(found.jobs, traces(), SlurmPolicy(), cluster)
    gpu_hours = sum(job.gpu_seconds for job in result.jobs) / 3600
    assert gpu_hours == pytest.approx(found.gpu_hours, rel=0.02)
    shortest = min(result.jobs, key=lambda job: job.gpu_seconds)
    assert shortest.gpu_seconds < 20


def test_that_a_missing_application_is_named() -> None:
    with pytest.raises(TraceError, match="no traces of application 'yolov3', needed for jobs like 4713"):
        import_sacct([HEAD, ROWS[2]], {"ncf": traces()["ncf"]})
