"""Reports agree with the store's views, whatever is in the store."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pollux_slurm.document.charts.line_charts import LineChart
from pollux_slurm.document.charts.move_bars import MoveChart
from pollux_slurm.document.charts.rendering import script, specification
from pollux_slurm.document.charts.stacked_bars import StackedBars
from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.charts.timeline import Timeline
from pollux_slurm.document.document import Document, Plot
from pollux_slurm.document.forms.exports import document_json
from pollux_slurm.document.forms.html import document_html
from pollux_slurm.errors import StoreError, UnknownJobError
from pollux_slurm.report.group import account_document, cluster_document
from pollux_slurm.report.job import Told, job_document
from pollux_slurm.report.jobs import jobs_document
from pollux_slurm.report.parts.gpus_over_time import gpus_over_time_part
from pollux_slurm.report.parts.job_moves import moves_part, paid_back_s
from pollux_slurm.report.parts.moves_by_day import moves_by_day_part
from pollux_slurm.report.parts.rounds import rounds_part
from pollux_slurm.report.reading import _known_names, read_group, read_job
from pollux_slurm.store.reporting.queries import ViewReader, open_view_reader
from pollux_slurm.store.reporting.view_rows import GpuHolders, ReallocationEntry
from tests.document.forms.test_page import assert_self_contained
from tests.report.parsed import parse
from tests.report.stories import AFTER, BEFORE, HOSTILE, filled_store
from tests.store.builders import at

NOW = at(7200)
DAY = Range(since=at(-3600), until=NOW)


@pytest.fixture(scope="module")
def reports(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewReader]:
    """Open the reports of a store with the story in it; nothing here writes to it."""
    with open_view_reader(filled_store(store_template, tmp_path_factory.mktemp("filled"))) as opened:
        yield opened


@pytest.fixture
def empty(store_url: str) -> Iterator[ViewReader]:
    with open_view_reader(store_url) as opened:
        yield opened


def plots(document: Document) -> dict[str, Plot]:
    return {plot.chart.title: plot for part in document.parts for plot in part.plots}


def job(reports: ViewReader, number: str, range_: Range | None = None) -> Document:
    return job_document(read_job(reports, number, range_), made_at=NOW, range_=range_)


def cluster(reports: ViewReader) -> Document:
    return cluster_document(read_group(reports, DAY), DAY, made_at=NOW, command="pollux report cluster")


def series(document: Document, title: str, label: str) -> list[tuple[float, float]]:
    chart = plots(document)[title].chart
    assert isinstance(chart, LineChart)
    (found,) = [one for panel in chart.panels for one in panel.series if one.label.startswith(label)]
    return [(x - at(0).timestamp(), y) for x, y in found.points if not math.isnan(y)]


def test_that_goodput_is_plotted_as_it_was_reported(reports: ViewReader) -> None:
    found = series(job(reports, "1"), "Goodput and GPUs over time", "goodput")
    early = [(8.0 + 2 * i, pytest.approx(a * b)) for i, (a, b) in enumerate(BEFORE)]
    late = [(40.0 + 2 * i, pytest.approx(a * b)) for i, (a, b) in enumerate(AFTER)]
    assert (found[:4], found[-4:]) == (early, late)


def test_that_several_jobs_stand_beside_each_other(reports: ViewReader) -> None:
    histories = [read_job(reports, number) for number in ("1", "2")]
    document = jobs_document(histories, made_at=NOW)
    first, second = (history.job for history in histories)
    found = document.table("comparison")
    keys = [column.key for column in found.columns]
    rows = {row[0]: dict(zip(keys, row, strict=True)) for row in found.rows}
    assert (rows["time_s"]["value_1"], rows["time_s"]["value_2"]) == (89.0, 7200.0)
    assert rows["time_s"]["ratio_2"] == pytest.approx(7200 / 89)
    hours = rows["gpu_hours"]
    assert (hours["value_1"], hours["value_2"]) == (first.gpu_hours, second.gpu_hours)
    assert hours["ratio_2"] == pytest.approx(second.gpu_hours / first.gpu_hours)
    assert (rows["goodput"]["value_1"], rows["goodput"]["ratio_2"]) == (first.goodput, None)
    assert (rows["name"]["text_1"], rows["name"]["ratio_2"]) == ("train-1", None)
    chart = plots(document)["Goodput and GPUs since submission"].chart
    assert isinstance(chart, LineChart)
    (line,) = chart.panels[0].series
    assert (line.label, line.points[0]) == ("job 1", (pytest.approx(8 / 3600), 50.0))
    parsed = parse(document_html(document, static=True).replace("<!DOCTYPE html>", ""))
    assert [cell.text for cell in parsed.all("thead")[0].all("th")] == [
        *("measure", "job 1", "job 2", "ratio, job 2")
    ]


def test_that_a_job_is_compared_with_the_gpus_that_it_asked_for(reports: ViewReader) -> None:
    def over_asked(told: Told) -> list[object]:
        document = job_document(read_job(reports, "1", told=told), made_at=NOW)
        return [(fact.title, fact.value) for fact in document.facts if fact.key == "speedup_asked"]

    goodput = read_job(reports, "1").job.goodput
    assert goodput is not None
    title = "Speedup over the 4 GPUs that it asked for, predicted"
    assert over_asked(Told(asked_gpus=4, asked_goodput=50.0)) == [(title, pytest.approx(goodput / 50.0))]
    assert over_asked(Told(asked_gpus=1, asked_goodput=50.0)) == [], "the speedup over one GPU is there"
    assert over_asked(Told(asked_gpus=4)) == over_asked(Told()) == []


def test_that_gpus_are_plotted_as_they_were_held(reports: ViewReader) -> None:
    assert series(job(reports, "1"), "Goodput and GPUs over time", "GPUs") == [
        (4, 2),
        (29, 2),
        (29, 4),
        (89, 4),
    ]


def test_that_batch_size_and_efficiency_are_plotted(reports: ViewReader) -> None:
    title = "Batch size and statistical efficiency over time"
    document = job(reports, "1")
    assert series(document, title, "global batch")[0] == (8.0, 256)
    assert series(document, title, "global batch")[-1] == (46.0, 512)
    assert [y for _, y in series(document, title, "statistical")][-4:] == [b for _, b in AFTER]


def test_that_a_move_shows_what_it_cost_and_brought(reports: ViewReader) -> None:
    """Half a second blocked, 12.5 s in all, the first step 6 s after the start: 6 s in Slurm's hands."""
    document = job(reports, "1")
    chart = plots(document)["What each reallocation cost and brought"].chart
    assert isinstance(chart, MoveChart)
    (row,) = chart.rows
    assert row.cost_s == pytest.approx((0.5, 6.0, 6.0, 0.0), abs=0.01)
    found = document.table("reallocations")
    cells = dict(zip([column.key for column in found.columns], found.rows[0], strict=True))
    assert (cells["source_gpus"], cells["target_gpus"], cells["step"]) == (2, 4, "confirmed")
    assert cells["runs"] == "1 → 2"
    before, after = cells["goodput_before"], cells["goodput_after"]
    assert isinstance(before, float)
    assert isinstance(after, float)
    assert (row.before, row.after) == (before, after)
    assert cells["paid_back_s"] == pytest.approx(12.5 * before / (after - before), abs=0.01)
    (entry,) = reports.rows(ReallocationEntry, slurm_job_id="1").rows
    shrunk = dataclasses.replace(entry, source_gpus=4, target_gpus=2)
    assert (paid_back_s(entry) is None, paid_back_s(shrunk)) == (False, None)


def test_that_the_costs_of_moves_in_place_are_shown_apart(reports: ViewReader) -> None:
    (by_requeue,) = reports.rows(ReallocationEntry).rows
    others = {"checkpoint_s": None, "hold_s": None, "slurm_s": None, "launch_s": None, "total_s": None}
    in_place = dataclasses.replace(
        by_requeue, reallocation_id=2, way="in_place", standstill_s=0.5, warm_up_s=8.0, **others
    )
    part = moves_part([by_requeue, in_place])
    assert "stood still: 12.5 s for 1 by requeue; 0.5 s for 1 in place" in part.text
    chart = part.plots[0].chart
    assert isinstance(chart, MoveChart)
    assert chart.rows[1].cost_s == (0.0, 0.0, 0.0, 0.5)
    assert "moved in place, stood still for 0.5 s" in chart.rows[1].description
    (found,) = part.tables
    rows = [dict(zip([column.key for column in found.columns], row, strict=True)) for row in found.rows]
    assert [(row["way"], row["total_s"], row["standstill_s"], row["warm_up_s"]) for row in rows] == [
        ("requeue", pytest.approx(12.5, abs=0.01), None, None),
        ("in_place", None, 0.5, 8.0),
    ]
    of_day = moves_by_day_part([by_requeue, in_place, in_place], DAY)
    assert "12.5 s for 1 by requeue; 1 s for 2 in place, 0.5 s a move" in of_day.text
    below = of_day.plots[0].data
    assert below is not None
    assert [column.key for column in below.columns][-2:] == ["launch_min", "regroup_min"]
    assert [(day.isoformat(), round(60 * sum(parts), 1)) for day, *parts in below.rows] == [
        ("2026-03-01", 13.5)
    ]
    history = read_group(reports, DAY)
    moved = dataclasses.replace(history, moves=[by_requeue, in_place])
    facts = {fact.key: fact.value for fact in cluster_document(moved, DAY, made_at=NOW, command="").facts}
    assert (facts["num_moves"], facts["lost_s"]) == (1, pytest.approx(12.5, abs=0.01))
    assert (facts["num_regroups"], facts["standstill_s"]) == (1, 0.5)


def test_that_a_range_cuts_the_plots_and_nothing_else(reports: ViewReader) -> None:
    document = job(reports, "1", Range(since=at(35), until=at(43)))
    assert [x for x, _ in series(document, "Goodput and GPUs over time", "goodput")] == [35, 40, 42]
    assert document.table("reallocations").rows == ()
    assert {fact.key: fact.value for fact in document.facts}["restarts"] == 1
    assert series(document, "Goodput and GPUs over time", "GPUs")[-1][1] == 4
    words = "are of 2026-03-01 12:00 to 2026-03-01 12:00 UTC, single values of its whole life."
    assert document.lead.endswith(words)
    assert "whole life" not in job(reports, "1").lead


def test_that_the_range_of_a_job_is_within_its_life_and_has_the_predictions_of_its_days(
    reports: ViewReader,
) -> None:
    early = job(reports, "1", Range(since=at(-1e7), until=at(20)))
    assert early.range == Range(since=at(0), until=at(20))
    assert len(early.table("model_accuracy").rows) == 2
    next_day = job(reports, "1", Range(since=at(43200), until=at(43260)))
    assert next_day.table("model_accuracy").rows == ()


def test_that_a_long_range_shows_the_jobs_life_and_one_without_it_nothing(reports: ViewReader) -> None:
    whole = plots(job(reports, "1"))["Goodput and GPUs over time"].chart
    wide = plots(job(reports, "1", Range(since=at(-1e7), until=NOW)))["Goodput and GPUs over time"].chart
    assert isinstance(whole, LineChart)
    assert isinstance(wide, LineChart)
    assert wide.x == whole.x
    before = job(reports, "1", Range(since=at(-200), until=at(-100)))
    assert plots(before) == {}
    assert "not held GPUs and not reported in this time" in before.parts[0].text


def test_that_the_cluster_adds_up(reports: ViewReader) -> None:
    document = cluster(reports)
    chart = plots(document)["GPU hours by account and day"].chart
    assert isinstance(chart, StackedBars)
    assert chart.labels[1] == "vision"
    (vision,) = [stack.parts[1] for stack in chart.stacks if stack.parts[1]]
    assert vision == pytest.approx((25 * 2 + 60 * 4) / 3600)
    given = series(document, "GPUs decided, and what they were to bring", "decided")
    assert given == [(6, 8), (60, 8)]
    facts = {fact.key: fact.value for fact in document.facts}
    assert (facts["num_jobs"], facts["num_finished"], facts["num_users"], facts["num_moves"]) == (3, 1, 3, 1)
    assert facts["lost_s"] == pytest.approx(12.5, abs=0.01)
    accounts = {row[0]: row for row in document.table("accounts").rows}
    assert accounts["vision"][1] == pytest.approx(vision)
    assert accounts["vision"][6] == pytest.approx(accounts["vision"][5] / accounts["vision"][1])  # type: ignore[operator]


def test_that_the_median_gap_of_two_rounds_is_their_mean(reports: ViewReader) -> None:
    history = read_group(reports, DAY)
    rounds = [dataclasses.replace(one, gap=gap) for one, gap in zip(history.rounds, (0.0, 0.5), strict=True)]
    document = cluster_document(dataclasses.replace(history, rounds=rounds), DAY, made_at=NOW, command="c")
    assert {fact.key: fact.value for fact in document.facts}["median_gap"] == 0.25


def test_that_rounds_in_shadow_mode_are_not_said_to_have_given_gpus(reports: ViewReader) -> None:
    history = read_group(reports, DAY)
    first, second = history.rounds
    for shadow, text in (
        (False, ""),
        (True, " Rounds in shadow mode, by which no job gets GPUs: 1."),
    ):
        rounds = [dataclasses.replace(first, shadow=shadow), second]
        (plot,) = rounds_part(rounds, DAY).plots
        assert plot.chart.text == f"2 rounds decided on 8 GPUs, of 8 there, at the median.{text}"
        assert text in plot.caption


@pytest.mark.parametrize(
    ("range_", "days"),
    [
        (Range(since=at(40), until=at(60)), "2026-03-01"),
        (Range(since=at(-86400), until=at(43200)), "2026-02-28 to 2026-03-01"),
        (Range(since=at(-43200), until=at(43200)), "2026-03-01"),
    ],
)
def test_that_sums_of_whole_days_are_said_to_be_that(reports: ViewReader, range_: Range, days: str) -> None:
    """Of a job's 290 GPU seconds on the day all count, also in a report on 20 s; T0 is noon."""
    document = cluster_document(read_group(reports, range_), range_, made_at=NOW, command="c")
    titles = {fact.key: fact.title for fact in document.facts}
    for key in ("gpu_hours", "progress_share", "useful_share"):
        assert titles[key].endswith(", whole days") != range_.is_of_whole_days
    assert document.tables()["accounts"].title == f"By account, whole days in UTC, {days}"
    assert document.tables()["nodes"].note.startswith(f"GPU hours are of whole days in UTC, {days}.")
    vision = next(row for row in document.table("accounts").rows if row[0] == "vision")
    assert vision[1] == pytest.approx((25 * 2 + 60 * 4) / 3600)


def test_that_standstill_is_added_up_by_day_and_part(reports: ViewReader) -> None:
    chart = plots(cluster(reports))["Standstill for reallocations by day"].chart
    assert isinstance(chart, StackedBars)
    (day,) = chart.stacks
    assert [60 * minutes for minutes in day.parts] == pytest.approx([0.5, 6.0, 6.0, 0.0], abs=0.01)
    assert day.name == "1 Mar 2026"


def test_that_a_node_is_used_by_the_share_of_its_hours_that_was_held(reports: ViewReader) -> None:
    history = read_group(reports, DAY)
    node = next(one for one in history.nodes if one.node_name == "n3")
    node = dataclasses.replace(node, gpu_type="t4", gpu_hours=72.0, available_gpu_hours=192.0)
    document = cluster_document(
        dataclasses.replace(history, nodes=[node]), DAY, made_at=NOW, command="pollux report cluster"
    )
    assert document.table("nodes").rows == (("n3", "t4", 72.0, 192.0, 0.375),)


def test_that_predictions_are_weighed_by_samples_and_stand_in_order(reports: ViewReader) -> None:
    history = read_job(reports, "1")
    one = dataclasses.replace(history.accuracy[0], gpu_type="t4", num_gpus=2)
    rows = [
        dataclasses.replace(one, run_number=10, num_samples=1, mean_error=0.5, throughput=None),
        dataclasses.replace(one, run_number=2, num_samples=3, mean_error=0.1, throughput=100.0),
        dataclasses.replace(one, run_number=2, num_samples=1, mean_error=-0.3, throughput=200.0),
    ]
    document = job_document(dataclasses.replace(history, accuracy=rows), made_at=NOW)
    second, tenth = document.table("model_accuracy").rows
    assert (second[:4], tenth[:4]) == ((3, "t4", 2, 4), (11, "t4", 2, 1))
    assert (second[5], second[6], tenth[5]) == (125.0, pytest.approx(0.0), None)


def test_that_an_account_is_told_apart(reports: ViewReader) -> None:
    history = read_group(reports, DAY, account="vision")
    document = account_document(history, DAY, account="vision", made_at=NOW, command="c")
    assert [row[0] for row in document.table("jobs").rows] == ["1"]
    assert [row[0] for row in document.table("users").rows] == ["ada"]
    everyone = account_document(read_group(reports, DAY), DAY, account=None, made_at=NOW, command="c")
    assert {row[0] for row in everyone.table("jobs").rows} == {"1", "2", "3"}


def test_that_unknown_jobs_and_accounts_are_one_clear_line(reports: ViewReader) -> None:
    with pytest.raises(UnknownJobError, match="job 77 is not known"):
        read_job(reports, "77")
    with pytest.raises(StoreError, match=r"account 'x' has no adaptive job .* usage in it: physics, vision"):
        read_group(reports, DAY, account="x")


def test_that_an_unknown_account_is_told_the_nearest_name_and_how_many_there_are() -> None:
    names = [f"account{number:02}" for number in range(12)]
    assert _known_names("acount03", names[:10]).startswith("did you mean account03? accounts with usage")
    assert _known_names("acount03", names[:10]).endswith("account08, account09")
    assert _known_names("x", names) == f"accounts with usage in it: {', '.join(names[:10])} and 2 more"
    assert _known_names("x", []) == "no account has any"


@pytest.mark.parametrize("number", ["1", "2", "3"])
def test_that_every_job_makes_a_page_that_runs_nothing(reports: ViewReader, number: str) -> None:
    text = document_html(job(reports, number))
    assert_self_contained(text)
    page = parse(text.replace("<!DOCTYPE html>", ""))
    (policy,) = [one for one in page.all("meta") if "http-equiv" in one.attributes]
    assert policy.attributes["content"].startswith(
        "default-src 'none'; style-src 'unsafe-inline'; script-src"
    )
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    links = {link.attributes["href"].removeprefix("#") for link in page.all("a")}
    assert links <= set(ids)
    (heading,) = page.all("h1")
    names = {"1": "train-1", "3": "waits"}
    cleaned = HOSTILE.replace("\x1b", "\N{REPLACEMENT CHARACTER}").replace(
        "\u202e", "\N{REPLACEMENT CHARACTER}"
    )
    assert heading.all("bdi")[0].text == names.get(number, cleaned)


def test_that_a_job_that_waits_or_only_runs_says_so(reports: ViewReader) -> None:
    waits, runs = job(reports, "3"), job(reports, "2")
    assert "has been waiting since 2026-03-01 12:00:00" in waits.lead
    assert plots(waits) == {}
    assert "nothing to plot" in waits.parts[0].text
    assert "It is running: all values are up to" in runs.lead
    assert list(plots(runs)) == ["Goodput and GPUs over time"]
    assert "none of its runs has reported" in runs.parts[0].text


def test_that_an_empty_store_makes_pages_that_say_so(empty: ViewReader) -> None:
    document = cluster(empty)
    assert plots(document) == {}
    text = document_html(document)
    for words in (
        "No adaptive job held GPUs",
        "No round was decided",
        "No adaptive job was submitted in this time",
    ):
        assert words in text
    assert set(json.loads(document_json(document))["tables"]) >= {"jobs", "rounds", "nodes", "fairness"}


def test_that_every_table_is_there_whatever_the_story(reports: ViewReader, empty: ViewReader) -> None:
    filled, unfilled = cluster(reports).tables(), cluster(empty).tables()
    assert set(unfilled) <= set(filled)


def test_that_one_sample_and_ten_thousand_make_a_page(reports: ViewReader) -> None:
    history = read_job(reports, "1")
    one = dataclasses.replace(history, samples=history.samples[:1])
    chart = plots(job_document(one, made_at=NOW))["Goodput and GPUs over time"].chart
    assert '"dot":true' in specification(chart), "a line of one point would not be seen"
    first = history.samples[0]
    many = [
        dataclasses.replace(first, at=at(0.005 * index), goodput=float(index % 7)) for index in range(10_000)
    ]
    document = job_document(dataclasses.replace(history, samples=many), made_at=NOW)
    text = document_html(document)
    assert len(text) - len(script()) < 600_000
    assert "200 of 10,000 rows, evenly apart; all: pollux report job 1 --csv --table samples" in text
    assert len(document.table("samples").rows) == 10_000


def test_that_what_is_missing_leaves_a_gap(reports: ViewReader) -> None:
    history = read_job(reports, "1")
    blind = [dataclasses.replace(one, efficiency=None, goodput=None) for one in history.samples]
    document = job_document(dataclasses.replace(history, samples=blind), made_at=NOW)
    assert series(document, "Goodput and GPUs over time", "goodput") == []
    assert len(series(document, "Goodput and GPUs over time", "throughput")) == len(blind)
    text = document_html(document)
    assert "No goodput is known" in text
    assert "No efficiency is known yet" in text


def test_that_clocks_that_disagree_make_a_page(reports: ViewReader) -> None:
    """A job whose reports come from before its submission, or whose end lies before its begin."""
    history = read_job(reports, "1")
    early = datetime(2020, 1, 1, tzinfo=timezone.utc)
    odd = [dataclasses.replace(history.samples[0], at=early)]
    turned = dataclasses.replace(history.job, finished_at=history.job.submitted_at - timedelta(hours=1))
    document = job_document(dataclasses.replace(history, samples=odd, job=turned), made_at=NOW)
    assert "0 s after it was submitted" in document.lead
    assert_self_contained(document_html(document))


def test_that_a_report_says_where_it_has_not_everything(reports: ViewReader) -> None:
    history = read_group(reports, DAY, most_rows=1)
    document = cluster_document(history, DAY, made_at=NOW, command="c")
    assert "more than a page holds: of account_usage, job_goodput" in document.lead
    assert "a shorter time" in document.lead
    assert "more than" not in cluster(reports).lead


def test_that_hours_after_the_last_round_are_said_to_be_assumed(reports: ViewReader) -> None:
    history = read_group(reports, DAY)
    assert history.last_round_at is not None
    for later, is_said in ((timedelta(minutes=59), False), (timedelta(minutes=61), True)):
        range_ = Range(since=DAY.since, until=history.last_round_at + later)
        document = cluster_document(history, range_, made_at=NOW, command="c")
        assert ("The last round was at 2026-03-01" in document.lead) == is_said


def test_that_few_jobs_have_a_row_each_under_their_names(reports: ViewReader) -> None:
    document = cluster(reports)
    chart = plots(document)["Who held what when"].chart
    assert isinstance(chart, Timeline)
    first, second = sorted(chart.bars, key=lambda bar: bar.name)
    begin = at(0).timestamp()
    assert (first.group, first.begin - begin, first.end - begin) == ("1 train-1", 0, 89)
    assert [(since - begin, gpus) for since, gpus in first.gpu_changes] == [(4, 2), (29, 4), (89, 0)]
    assert [(since - begin, gpus) for since, gpus in second.gpu_changes] == [(5, 1), (7200, 0)]
    assert second.end == NOW.timestamp(), "it runs on"
    assert document.table("allocations").rows == (
        (at(4), at(29), "1", "ada", "vision", 2),
        (at(5), None, "2", "grace", "physics", 1),
        (at(29), at(89), "1", "ada", "vision", 4),
    )


def test_that_a_part_of_time_has_all_who_held_gpus_in_it_and_nothing_beside_it(reports: ViewReader) -> None:
    """Job 1 was submitted before, has two GPUs up to 29 s and then four; job 2 has one."""
    for range_, expected in (
        (Range(since=at(10), until=at(20)), {"1": [(10, 2), (20, 0)], "2": [(10, 1), (20, 0)]}),
        (Range(since=at(20), until=at(40)), {"1": [(20, 2), (29, 4), (40, 0)], "2": [(20, 1), (40, 0)]}),
        (Range(since=at(100), until=at(110)), {"2": [(100, 1), (110, 0)]}),
    ):
        document = cluster_document(read_group(reports, range_), range_, made_at=NOW, command="c")
        chart = plots(document)["Who held what when"].chart
        assert isinstance(chart, Timeline)
        begin = at(0).timestamp()
        found = {
            bar.name[0]: [(since - begin, gpus) for since, gpus in bar.gpu_changes] for bar in chart.bars
        }
        assert found == expected
        ends = {(bar.begin, bar.end) for bar in chart.bars}
        assert ends == {(range_.since.timestamp(), range_.until.timestamp())}
        assert "submitted before this time are not here" in document.tables()["jobs"].note


def test_that_a_job_that_held_no_gpus_in_a_part_of_what_was_read_is_not_in_its_plot(
    reports: ViewReader,
) -> None:
    part_of_it = Range(since=at(100), until=at(110))
    (part,) = gpus_over_time_part(read_group(reports, DAY).held, part_of_it, by="account")
    chart, data = part.plots[0].chart, part.plots[0].data
    assert isinstance(chart, Timeline)
    assert [bar.name[0] for bar in chart.bars] == ["2"]
    assert [row[2] for row in data.rows] == ["2"]


def test_that_a_jobs_gpus_are_drawn_within_the_range(reports: ViewReader) -> None:
    title = "Goodput and GPUs over time"
    range_ = Range(since=at(10), until=at(20))
    assert series(job(reports, "1", range_), title, "GPUs") == [(10, 2), (20, 2)]
    assert series(job(reports, "2", range_), title, "GPUs") == [(10, 1), (20, 1)]


def test_that_many_jobs_stand_in_groups(reports: ViewReader) -> None:
    history = read_group(reports, DAY)
    one, event = history.held.jobs[0], history.held.intervals[0]

    jobs = tuple(dataclasses.replace(one, job_id=i, account=f"a{i % 3}") for i in range(13))
    intervals = tuple(dataclasses.replace(event, job_id=i) for i in range(13))
    (part,) = gpus_over_time_part(GpuHolders(jobs=jobs, intervals=intervals), DAY, by="account")
    chart = part.plots[0].chart
    assert isinstance(chart, Timeline)
    assert {bar.group for bar in chart.bars} == {"a0", "a1", "a2"}
    assert len(chart.bars) == 13


def test_that_more_accounts_than_colours_are_added_up(reports: ViewReader) -> None:
    history = read_group(reports, DAY)
    (usage,) = [row for row in history.usage if row.account == "vision"]
    many = [dataclasses.replace(usage, account=f"a{i}", gpu_hours=20.0 - i) for i in range(20)]
    document = cluster_document(
        dataclasses.replace(history, usage=many), DAY, made_at=NOW, command="pollux report cluster"
    )
    chart = plots(document)["GPU hours by account and day"].chart
    assert isinstance(chart, StackedBars)
    assert chart.labels == ("a0", "a1", "a2", "a3", "a4", "a5", "a6", "13 others")
    assert chart.stacks[0].parts[-1] == sum(20.0 - i for i in range(7, 20))
    assert len(document.table("accounts").rows) == 20


def test_that_jobs_without_an_account_are_named_so(reports: ViewReader) -> None:
    assert "account (none)" in job(reports, "3").lead
