"""The page of a comparison: the right data in each plot."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pollux_slurm.document.charts.line_charts import NUM_STYLES, LineChart
from pollux_slurm.document.charts.timeline import Timeline
from pollux_slurm.document.forms.html import document_html
from pollux_slurm.errors import UsageError
from pollux_slurm.simulator import Application
from pollux_slurm.simulator.experiments.axis_plots import axis_plots
from pollux_slurm.simulator.experiments.kept_runs import KeptRun, table_rows
from pollux_slurm.simulator.experiments.run_report import report_document, write_report
from pollux_slurm.simulator.experiments.runs import RunSpec, run_one
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.results.files import summary_as_dict
from pollux_slurm.simulator.results.summary import RunOutcome
from pollux_slurm.text import number_text
from tests.document.forms.test_page import assert_self_contained
from tests.report.browser import opened_browser, opened_page
from tests.report.parsed import Element, parse
from tests.simulator.builders import made_application, made_job


@functools.cache
def made(tmp_path: Path) -> Mapping[str, Application]:
    return {"made": made_application(tmp_path)}


def settings(policy: str) -> RunSettings:
    return RunSettings(policy=policy, num_nodes=1, gpus_per_node=2)


def outcomes(tmp_path: Path, *workloads: str) -> Sequence[RunOutcome]:
    jobs = tuple(made_job(f"j{index}", at_s=10.0 * index) for index in range(5))
    return [
        run_one(RunSpec(workload=workload, jobs=jobs, settings=settings(policy)), made(tmp_path))
        for workload in workloads
        for policy in ("tiresias", "optimus")
    ]


def kept(found: Sequence[RunOutcome], labels: Sequence[str]) -> list[KeptRun]:
    return [
        KeptRun(
            workload=one.summary.workload,
            load=None,
            seed=None,
            label=label,
            place={"rules": "osdi21", "nodes": "1x2"},
            summary=summary_as_dict(one.summary),
            outcome=one,
        )
        for one, label in zip(found, labels, strict=True)
    ]


def shown(tmp_path: Path, *workloads: str) -> tuple[Element, Sequence[RunOutcome]]:
    found = outcomes(tmp_path, *workloads)
    labels = [one.summary.policy for one in found]
    text = document_html(report_document(kept(found, labels)))
    assert_self_contained(text)
    return parse(text.replace("<!DOCTYPE html>", "")), found


def test_that_a_job_that_ends_before_the_first_round_is_reported(tmp_path: Path) -> None:
    """Slurm starts the job, which ends some 200 s later; the first round would be after an hour."""
    settings = RunSettings(num_nodes=1, gpus_per_node=1, interval_s=3600, rules="slurm")
    job = dataclasses.replace(made_job("a", at_s=5), start_gpus=1)
    one = run_one(RunSpec(workload="w", jobs=(job,), settings=settings), made(tmp_path))
    assert (len(one.rounds), one.summary.avg_goodput) == (0, 0)
    assert one.summary.solve_s == {"p50": 0, "p95": 0, "max": 0}
    assert_self_contained(document_html(report_document(kept([one], ["pollux"]))))


def figures(page: Element) -> dict[str, Element]:
    return {figure.all("h3")[0].text: figure for figure in page.all("figure")}


def test_that_each_plot_occurs_once(tmp_path: Path) -> None:
    page, _ = shown(tmp_path, "w")
    assert list(figures(page)) == [
        "How soon jobs are done",
        "Who pays for sharing",
        "GPUs used, and the goodput achieved with them",
        "GPUs of each job over time: tiresias",
        "GPUs of each job over time: optimus",
    ]


def test_that_the_table_has_the_summaries(tmp_path: Path) -> None:
    page, found = shown(tmp_path, "w")
    rows = page.all("tbody")[0].all("tr")
    assert [row.all("th")[0].text for row in rows] == ["tiresias", "optimus"]
    first = found[0].summary.avg_jct_s
    for row, one in zip(rows, found, strict=True):
        cells = [cell.text for cell in row.all("td")]
        assert cells[0] == number_text(one.summary.avg_jct_s)
        assert cells[1] == number_text(one.summary.avg_jct_s / first)
        assert cells[6] == number_text(one.summary.gpu_hours)
        assert cells[9] == number_text(one.summary.rho_worst)


def test_that_the_table_fits_a_laptops_screen(tmp_path: Path) -> None:
    large = {"avg_jct_s": 1.2e5, "p90_jct_s": 9e6, "makespan_s": 9e6, "gpu_hours": 1e5, "rho_worst": 10.5}
    found = [
        dataclasses.replace(one, summary=dataclasses.replace(one.summary, **large))
        for one in outcomes(tmp_path, "workload-1", "workload-3")
    ]
    file = tmp_path / "x.html"
    labels = ["generalized-mean", "price-rank (declared)"] * 2
    write_report(file, kept(found, labels))
    with opened_browser() as browser, opened_page(browser, file.as_uri(), width=1200) as page:
        table = page.locator(".scroll").first
        assert table.evaluate("box => box.scrollWidth - box.clientWidth") == 0


def test_that_a_share_is_done_at_the_time_of_each_job(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "w")
    page = report_document(kept(found, ["a", "b"]))
    chart = page.parts[1].plots[0].chart
    assert isinstance(chart, LineChart)
    times = sorted(job.completion_s for job in found[1].jobs)
    axis = chart.x
    assert chart.panels[0].series[1].points[0] == (axis.low, 0.0), "from edge to edge"
    assert chart.panels[0].series[1].points[-1] == (axis.high, 1.0)
    assert chart.panels[0].series[1].points[1:-1] == tuple(zip(times, (0.2, 0.4, 0.6, 0.8, 1.0), strict=True))


def test_that_the_timeline_has_a_row_for_each_job(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "w")
    page = report_document(kept(found, ["a", "b"]))
    first = next(one.chart for one in page.parts[1].plots if isinstance(one.chart, Timeline))
    assert [bar.name for bar in first.bars] == [job.name for job in found[0].jobs]


def test_that_timelines_share_their_axis(tmp_path: Path) -> None:
    quick, _ = outcomes(tmp_path, "w")
    slow = dataclasses.replace(settings("tiresias"), restart_delay_s=7200.0)
    jobs = tuple(made_job(job.name, at_s=job.submitted_s) for job in quick.jobs)
    slowed = run_one(RunSpec(workload="w", jobs=jobs, settings=slow), made(tmp_path))
    page = report_document(kept([quick, slowed], ["quick", "slow"]))
    axes = [plot.chart.x for plot in page.parts[1].plots if isinstance(plot.chart, Timeline)]
    assert len(axes) == 2
    assert axes[0] == axes[1]
    assert axes[0].high * 3600 >= max(job.finished_s for job in slowed.jobs)


def test_that_workloads_have_a_section_each(tmp_path: Path) -> None:
    page, _ = shown(tmp_path, "one", "two")
    assert [section.all("h2")[0].text for section in page.all("section")] == ["Comparison", "one", "two"]
    assert len(page.all("figure")) == 10


def swept(label: str, load: float, seed: int, delay_s: float, average_s: float) -> KeptRun:
    counts = ("restarts_per_job", "regroups_per_job")
    times = ("p50_jct_s", "p90_jct_s", "p99_jct_s", "makespan_s", "gpu_hours")
    numbers = (*times, *counts, "restart_share", "rho_worst")
    return KeptRun(
        workload=f"load{load:g}-seed{seed}",
        load=load,
        seed=seed,
        label=label,
        place={"interval_s": 60.0, "restart_delay_s": delay_s, "p": None, "penalty": None},
        summary={"avg_jct_s": average_s, "num_jobs": 9, **dict.fromkeys(numbers, 1.0)},
    )


def sweep() -> list[KeptRun]:
    return [
        swept(label, load, seed, delay_s, load * 600 + delay_s + 60 * seed + extra)
        for load in (1.0, 2.0)
        for seed in (0, 1)
        for delay_s in (0.0, 30.0)
        for label, extra in (("one", 0.0), ("two", 600.0))
    ]


def test_that_a_sweep_is_plotted_along_each_axis_that_varies() -> None:
    table, plots = report_document(sweep()).parts
    assert [plot.chart.title for plot in plots.plots] == ["Load", "What cheaper restarts are worth"]
    load, delay = plots.plots
    assert "one: 11 min at 1, 21 min at 2; two: 21 min at 1, 31 min at 2" in load.chart.text
    assert load.caption == "Average completion time at each load. At restart delay 30 s. Bars span the seeds."
    assert "one: 10.5 min at 0, 11 min at 30" in delay.chart.text, "at load 1, seeds averaged"
    assert len(table.tables[0].rows) == 8
    titles = [column.title for column in table.tables[0].columns]
    assert titles[:4] == ["policy", "load", "delay (s)", "runs"]
    assert "means over the runs of a row" in table.tables[0].note
    assert table.text == "Seeds of the workloads: 0, 1."


def test_that_a_label_has_one_line_style_on_the_whole_page() -> None:
    chart = axis_plots(table_rows(sweep()), {"two": 0, "other": 1})[0].chart
    assert isinstance(chart, LineChart)
    styles = {one.label: one.style for one in chart.panels[0].series}
    assert styles["two"] == 0
    assert styles["one"] not in (0, 1)


def test_that_a_page_without_runs_has_no_plots() -> None:
    assert [one.title for one in report_document([]).parts] == ["Comparison"]


def test_that_a_page_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "w")
    labels = [one.summary.policy for one in found]
    with pytest.raises(UsageError, match="cannot write"):
        write_report(tmp_path / "no" / "x.html", kept(found, labels))


def test_that_no_number_is_parted_from_its_unit() -> None:
    """On paper the columns are narrow: 7.0 and % stood on two lines."""
    page = parse(document_html(report_document(sweep())).replace("<!DOCTYPE html>", ""))
    heads = [cell.text for cell in page.all("thead")[0].all("th")]
    rows = page.all("tbody")[0].all("tr")
    lost = {row.all("td")[heads.index("lost") - 1].text for row in rows}
    assert lost == {"100.0\N{NO-BREAK SPACE}%"}


def test_that_each_plot_has_its_values_below(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "w")
    page = report_document(kept(found, ["tiresias", "optimus"]))
    done, _, use, *of_jobs = (plot.data for plot in page.parts[1].plots)
    assert done is not None
    assert use is not None
    assert done.rows[-1] == (1.0, *(max(job.completion_s for job in one.jobs) for one in found))
    used = [row[3] for row in use.rows if row[0] == "tiresias" and isinstance(row[3], float)]
    assert 0 < len(used) <= 24
    assert 0 < max(used) <= 2
    assert [[row[0] for row in data.rows] for data in of_jobs if data] == [["j0", "j1", "j2", "j3", "j4"]] * 2


def test_that_more_policies_than_line_styles_have_several_plots() -> None:
    many = [
        swept(f"policy {number}", 1.0, 0, delay_s, 600.0 + delay_s)
        for number in range(NUM_STYLES + 1)
        for delay_s in (0.0, 30.0)
    ]
    charts = [plot.chart for plot in axis_plots(table_rows(many))]
    lines = [len(chart.panels[0].series) for chart in charts if isinstance(chart, LineChart)]
    assert lines == [NUM_STYLES, 1]
