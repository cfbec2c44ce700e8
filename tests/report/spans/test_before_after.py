"""Two spans of time beside each other: what is compared, and what is said not to be comparable."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.cli.site.report import before_after
from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.document import Document
from pollux_slurm.document.forms.exports import document_json
from pollux_slurm.document.forms.html import document_html
from pollux_slurm.report.spans.caveats import caveats
from pollux_slurm.report.spans.document import before_after_document
from pollux_slurm.report.spans.jobs import Span, SpanJob, quartiles, span_of
from pollux_slurm.slurm.commands.accounting import JOB_COLUMNS
from pollux_slurm.slurm.parsing.sacct_text import SacctJob
from pollux_slurm.store.reporting.queries import open_view_reader
from pollux_slurm.store.reporting.view_rows import AccountUsage, JobGoodput
from tests.cli.inside import pollux
from tests.document.forms.test_page import assert_self_contained
from tests.report.stories import HOSTILE, filled_store
from tests.store.builders import at

SEPTEMBER = datetime(2026, 9, 1, tzinfo=timezone.utc)
RANGE = Range(since=SEPTEMBER, until=SEPTEMBER + timedelta(days=10))
RECORDED = Path(__file__).parents[2] / "slurm" / "recorded" / "sacct-22.05.txt"


def accounted(job_id: str = "1", *, since: datetime = SEPTEMBER, **changes: Any) -> SacctJob:
    """Return a job that waited for a minute, and then had two GPUs for an hour."""
    fields: dict[str, Any] = {
        "job_id": job_id,
        "name": "train",
        "user_name": "ada",
        "account": "vision",
        "state": "COMPLETED",
        "submitted_at": since,
        "started_at": since + timedelta(minutes=1),
        "ended_at": since + timedelta(minutes=61),
        "num_gpus": 2,
        "gpu_s": 7200,
    }
    return SacctJob(**{**fields, **changes})


def span(name: str = "before", *, number: int = 40, **changes: Any) -> Span:
    adaptive = changes.pop("adaptive", name != "before")
    one = span_of("x", RANGE, [accounted(**changes)], now=RANGE.until).jobs[0]
    return Span(name=name, range=RANGE, jobs=(dataclasses.replace(one, adaptive=adaptive),) * number)


def covered(name: str, first_at: datetime, last_at: datetime = RANGE.until) -> Span:
    """Return a span of ten days within which sacct's text begins and ends."""
    return dataclasses.replace(span(name), first_at=first_at, last_at=last_at)


def abouts(before: Span, after: Span) -> list[str]:
    return [about for about, _, _, _ in caveats(before, after)]


def test_that_a_span_has_the_jobs_that_were_submitted_in_it_and_had_gpus() -> None:
    found = span_of(
        "before",
        RANGE,
        [
            accounted("1"),
            accounted("2", state="CANCELLED", started_at=None, num_gpus=0, gpu_s=0),
            accounted("3", since=RANGE.until),
            accounted("4", since=SEPTEMBER - timedelta(seconds=1)),
            accounted("5", state="RUNNING", ended_at=None),
        ],
        now=RANGE.until,
    )
    assert (len(found.jobs), found.num_without) == (2, 1)
    first, runs = found.jobs
    assert (first.waited_s, first.completion_s, first.gpu_hours, first.size) == (
        60.0,
        3660.0,
        2.0,
        "2–3 GPUs",
    )
    assert first.slowdown == pytest.approx(3660 / 3600)
    assert (runs.completion_s, runs.slowdown) == (None, None)


def test_that_a_job_of_seconds_has_no_slowdown_of_thousands() -> None:
    ended = SEPTEMBER + timedelta(minutes=1, seconds=1)
    (job,) = span_of("before", RANGE, [accounted(ended_at=ended)], now=RANGE.until).jobs
    assert job.slowdown == pytest.approx(61 / 60)


def test_that_the_stores_adaptive_jobs_replace_slurms_rows_and_their_wings(
    store_template: Path, tmp_path: Path
) -> None:
    day = Range(since=at(-3600), until=at(7200))
    with open_view_reader(filled_store(store_template, tmp_path)) as reports:
        rows = reports.rows(JobGoodput).rows
        usage = reports.rows(AccountUsage).rows
    (own,) = [row for row in rows if row.slurm_job_id == "1"]
    own_name = {"name": own.name, "user_name": own.user_name, "account": own.account}
    wing = {**own_name, "name": f"{own.name}+2"}
    others_wing = {**wing, "user_name": "mallory"}
    found = span_of(
        "after",
        day,
        [
            accounted("1", since=own.submitted_at, **own_name),
            accounted("8", since=at(10), **wing),
            accounted("9", since=at(10), **others_wing),
        ],
        rows,
        usage,
        now=day.until,
    )
    adaptive = [job for job in found.jobs if job.adaptive]
    assert [job.user_name for job in found.jobs if not job.adaptive] == ["mallory"]
    assert len(adaptive) == 2, "the third waits"
    # Two GPUs from 4 s to 20 s or so, then four until 89 s.
    assert adaptive[0].completion_s == 89.0
    assert 3.0 < adaptive[0].num_gpus < 4.0
    assert found.num_without == 1
    assert 0 < found.useful_gpu_hours < found.trained_gpu_hours < found.measured_gpu_hours
    document = before_after_document(found, found, made_at=day.until, command="pollux report")
    assert_self_contained(document_html(document))
    assert json.loads(document_json(document))["tables"]["gpu_hours"][0]["useful_share"] > 0


def test_that_a_running_adaptive_job_counts_with_its_mean_up_to_now(
    store_template: Path, tmp_path: Path
) -> None:
    """Job 2 has started at 5 s, and holds GPUs since: eight of them for ten hours."""
    with open_view_reader(filled_store(store_template, tmp_path)) as reports:
        row = next(row for row in reports.rows(JobGoodput).rows if row.slurm_job_id == "2")
    assert row.started_at is not None
    running = dataclasses.replace(row, gpu_hours=80.0)
    now = row.started_at + timedelta(hours=10)
    (job,) = span_of("after", Range(since=at(0), until=now), [], [running], now=now).jobs
    assert (job.num_gpus, job.size, job.completion_s) == (8.0, "8–15 GPUs", None)


def test_that_quartiles_are_those_of_the_textbook() -> None:
    assert quartiles([1, 2, 3, 4, 5]) == (2, 3, 4)
    assert quartiles([7]) == (7, 7, 7)
    assert quartiles([]) == (None, None, None)


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (span("after"), []),
        (span("after", number=47), []),
        (span("after", number=49), ["jobs a day", "GPU hours a day"]),
        (span("after", number=31), ["jobs a day", "GPU hours a day"]),
        (span("after", number=29), ["number of jobs", "jobs a day", "GPU hours a day"]),
        (span("after", gpu_s=9000), ["GPU hours a day"]),
        (span("after", num_gpus=4), ["GPU hours by size of jobs"]),
        (span("after", account="speech"), ["GPU hours by account"]),
        (span("after", state="RUNNING", ended_at=None), ["jobs without an end"]),
        (span("after", state="FAILED"), ["GPU hours of jobs that did not complete"]),
        (span("after", adaptive=False), ["GPU hours of adaptive jobs"]),
        (covered("after", RANGE.since + timedelta(hours=11)), []),
        (covered("after", RANGE.since + timedelta(hours=13)), ["first job in sacct's text"]),
        (covered("after", RANGE.since, RANGE.until - timedelta(hours=13)), ["last job in sacct's text"]),
    ],
)
def test_that_each_difference_is_said_and_no_other(after: Span, found: list[str]) -> None:
    assert abouts(span(), after) == found


def test_that_a_text_that_begins_within_a_span_is_told_with_its_begin() -> None:
    jobs = [accounted(since=SEPTEMBER + timedelta(days=day)) for day in (2, 9)]
    found = dataclasses.replace(span_of("before", RANGE, jobs, now=RANGE.until), jobs=span().jobs)
    ((_, first, none, text), (about, last, _, _)) = caveats(found, span("after"))
    assert (first, none, last) == ("2026-09-03 00:00", "", "2026-09-10 00:00")
    assert text.startswith("Before: the text begins 2026-09-03, within the span.")
    assert about == "last job in sacct's text"


def test_that_adaptive_jobs_before_are_told() -> None:
    ((_, before, after, text),) = caveats(span(adaptive=True), span("after"))
    assert (before, after) == ("100.0 %", "100.0 %")
    assert text == (
        "Jobs were adaptive before, too (100.0 % of GPU hours): this compares Pollux with itself."
    )


def test_that_hours_in_other_groups_count_once_for_the_mix() -> None:
    mixed = dataclasses.replace(
        span("after"), jobs=(*span("after", number=36).jobs, *span("after", number=4, account="speech").jobs)
    )
    assert abouts(span(), mixed) == [], "a tenth belongs to others"
    others = (*span("after", number=3, account="a").jobs, *span("after", number=3, account="b").jobs)
    mixed = dataclasses.replace(mixed, jobs=(*span("after", number=34).jobs, *others))
    ((_, before, after, text),) = caveats(span(), mixed)
    assert (before, after) == ("100.0 % vision", "85.0 % vision")
    assert "15.0 % of the GPU hours" in text


def document(before: Span, after: Span) -> Document:
    return before_after_document(before, after, made_at=RANGE.until, command="pollux report before-after")


def test_that_medians_and_their_change_are_in_the_table() -> None:
    def jobs(*minutes: int) -> tuple[SpanJob, ...]:
        ends = [SEPTEMBER + timedelta(minutes=number) for number in minutes]
        jobs = [accounted(str(i), ended_at=end) for i, end in enumerate(ends)]
        return span_of("x", RANGE, jobs, now=RANGE.until).jobs

    before = dataclasses.replace(span(), jobs=jobs(10, 20, 60))
    after = dataclasses.replace(span("after"), jobs=jobs(5, 10, 30))
    table = document(before, after).table("times")
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows if row[0] == "completion time"]
    assert [(row["span"], row["median_s"], row["median_change"]) for row in rows] == [
        ("before", 1200.0, None),
        ("after", 600.0, -0.5),
    ]
    assert rows[0]["mean_s"] == 1800.0


def test_that_names_of_others_are_escaped_on_the_page() -> None:
    html = document_html(document(span(account=HOSTILE, user_name=HOSTILE), span("after")))
    assert_self_contained(html)
    assert "<script>document.title" not in html
    assert "\x1b" not in html


FILE = ("report", "before-after", "--sacct", str(RECORDED))
SPANS = (
    "--before", "2026-11-26T07:27:00..2026-11-26T07:27:30",
    "--after", "2026-11-26T07:27:30..2026-11-26T07:28",
)  # fmt: skip


def test_that_what_a_real_sacct_wrote_becomes_every_form(tmp_path: Path) -> None:
    """Slurm 22.05.8 with slurmdbd; the second span is made of the same jobs, half a minute later."""
    later = tmp_path / "later.txt"
    head, *rows = RECORDED.read_text().splitlines()
    later.write_text(shifted(head, rows))
    words = (*FILE, "--sacct", str(later), *SPANS)
    text = pollux(*words)
    assert (text.returncode, text.stderr) == (0, "")
    assert "Chance decides" in text.stdout
    found = json.loads(pollux(*words, "--json").stdout)
    assert found["report"] == "before_after"
    before, after = found["tables"]["gpu_hours"]
    assert (before["num_jobs"], before["num_without"]) == (5, 2)
    assert (after["num_jobs"], after["num_without"]) == (5, 2)
    # 4·4 + 4·6 + 2·3 + 1·2 s, and the two runs of the requeued job.
    assert before["gpu_hours"] == pytest.approx((16 + 24 + 6 + 2 + 1 + 5) / 3600)
    completions = [row for row in found["tables"]["times"] if row["measure"] == "completion time"]
    assert [row["median_s"] for row in completions] == [7.0, 7.0], "4, 6, 7, 8, and 132 s with a requeue"
    page = tmp_path / "page.html"
    assert pollux(*words, "-o", str(page)).returncode == 0
    assert_self_contained(page.read_text())


def test_that_an_account_with_ends_of_lines_is_one_cell_of_a_file(tmp_path: Path) -> None:
    later = tmp_path / "later.txt"
    head, *rows = RECORDED.read_text().splitlines()
    ends = "\x0b\x0c\x1e\x85\u2028"
    named = [row.replace(f"|{row.split('|')[2]}|", f"|vision{ends}|", 1) for row in rows]
    later.write_text(shifted(head, named))
    done = pollux(*FILE, "--sacct", str(later), *SPANS)
    assert (done.returncode, done.stderr) == (0, "")


def shifted(head: str, rows: list[str]) -> str:
    """Return the same jobs with other ids, half a minute later."""
    lines = [head]
    for row in rows:
        fields = row.split("|")
        for place in (3, 4, 5):
            if fields[place] != "None":
                later = datetime.fromisoformat(fields[place]) + timedelta(seconds=30)
                fields[place] = later.isoformat()
        lines.append("|".join([f"9{fields[0]}", *fields[1:]]))
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--before", "soon", "--after", "2026-10-01..2026-11-01"), 2, "write FROM..TO"),
        (("--before", "x..y", "--after", "2026-10-01..2026-11-01"), 2, "--before 'x' is not a time"),
        (("--before", "2026-10-01..2026-09-01", "--after", "1d..now"), 2, "does not end after its begin"),
        (("--before", "2026-09-01..2026-10-01", "--after", "2026-09-20..2026-10-20"), 2, "begins before"),
        (
            ("--before", "2026-09-01..2026-10-01", "--after", "2026-10-01..2026-11-01"),
            2,
            "no job with GPUs was submitted before, 2026-09-01 00:00 to 2026-10-01 00:00 UTC: sacct's text "
            "has jobs from 2026-11-26 07:27 to 2026-11-26 07:27 UTC",
        ),
        ((*SPANS, "--sacct", "/nowhere"), 2, "cannot read /nowhere"),
    ],
)
def test_that_an_error_is_one_line_with_what_to_write(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = pollux(*FILE, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert words in done.stderr


def test_that_a_missing_column_is_named(tmp_path: Path) -> None:
    file = tmp_path / "sacct.txt"
    file.write_text("JobIDRaw|Submit|ElapsedRaw|AllocTRES\n")
    done = pollux("report", "before-after", "--sacct", str(file), *SPANS)
    assert "has no column User" in done.stderr
    command = "TZ=UTC sacct -a -D -X -P -S {} -E {} " + f"--format={','.join(JOB_COLUMNS)} > "
    assert command.format("2026-11-26T07:27", "2026-11-26T07:28") in done.stderr
    assert command.format("2026-09-01", "2026-10-01") in " ".join((before_after.__doc__ or "").split())


def test_that_without_slurm_its_text_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = pollux("report", "before-after", *SPANS)
    assert "install Slurm's commands" in done.stderr
    assert "TZ=UTC sacct -a -D -X -P -S 2026-11-26T07:27 -E 2026-11-26T07:28" in done.stderr
    assert "give it by --sacct sacct.txt" in done.stderr
    failing = tmp_path / "sacct"
    failing.write_text("#!/bin/sh\necho no configuration >&2; exit 1\n")
    failing.chmod(0o755)
    done = pollux("report", "before-after", *SPANS)
    assert "no configuration; or run on a host with Slurm" in done.stderr


def test_that_a_text_of_jobs_without_gpus_points_to_what_slurm_counts(tmp_path: Path) -> None:
    file = tmp_path / "sacct.txt"
    head, *rows = RECORDED.read_text().splitlines()
    file.write_text("\n".join([head, *(row for row in rows if "gres/gpu" not in row)]))
    done = pollux("report", "before-after", "--sacct", str(file), *SPANS)
    assert "AccountingStorageTRES=gres/gpu" in done.stderr
