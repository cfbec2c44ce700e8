"""Views as frames, plots as Altair's charts, and the notebooks that use them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pollux_slurm.errors import UnknownJobError, UsageError
from pollux_slurm.report.frames import VIEWS, Frames, open_frames
from pollux_slurm.store.reporting.queries import column_types
from tests.report.stories import AFTER, BEFORE, filled_store
from tests.store.builders import at

NOTEBOOKS = Path(__file__).resolve().parents[2] / "examples" / "notebooks"


@pytest.fixture(scope="module")
def frames(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frames]:
    with open_frames(filled_store(store_template, tmp_path_factory.mktemp("frames"))) as opened:
        yield opened


@pytest.mark.parametrize("name", VIEWS)
def test_that_every_view_is_a_frame_of_its_columns_with_types(frames: Frames, name: str) -> None:
    frame = frames.view(name)
    assert list(frame.columns) == list(column_types(VIEWS[name]))
    assert len(frame) > 0
    assert "object" not in {str(of) for of in frame.dtypes}
    assert not frame.attrs["truncated"]


def test_that_times_are_aware_and_what_is_unknown_is_missing(frames: Frames) -> None:
    jobs = frames.view("job_goodput").set_index("slurm_job_id")
    assert jobs.loc["1", "started_at"] == at(4)
    assert jobs["started_at"].isna().tolist() == [False, False, True]
    assert str(jobs["runs"].dtype) == "Int64"
    days = frames.view("account_usage", account="vision")["day"]
    assert set(days) == {datetime(2026, 3, 1, tzinfo=timezone.utc)}


def test_that_a_frame_is_bounded_and_selected(frames: Frames) -> None:
    few = frames.view("job_goodput", limit=2)
    assert (len(few), few.attrs["truncated"]) == (2, True)
    assert frames.view("job_goodput", account="vision")["slurm_job_id"].tolist() == ["1"]
    assert len(frames.view("job_goodput", since="2027-01-01")) == 0
    assert len(frames.view("job_timeline", job="1", since=at(0), until=at(10))) > 0


def test_that_samples_are_what_the_job_reported(frames: Frames) -> None:
    samples = frames.samples("1")
    goodputs = samples["goodput"].tolist()
    assert goodputs[: len(BEFORE)] == pytest.approx([rate * share for rate, share in BEFORE])
    assert goodputs[-len(AFTER) :] == pytest.approx([rate * share for rate, share in AFTER])
    assert samples["global_batch_size"].iloc[-1] == 512


# Half a minute: the notebooks draw the same plots.
@pytest.mark.full
def test_that_plots_are_those_of_the_reports(frames: Frames) -> None:
    assert list(frames.job_plots("1")) == [
        "Goodput and GPUs over time",
        "Batch size and statistical efficiency over time",
        "What each reallocation cost and brought",
    ]
    assert "Who held what when" in frames.cluster_plots(since=at(0), until=at(120))
    assert "Who held what when" in frames.cluster_plots(since=at(0), until="9999-12-31T12:00"), "up to now"
    chart = frames.account_plots("vision", since=at(0), until=at(120))["What sharing cost the jobs"]
    assert "var(--" not in chart.to_json(), "a notebook has no style sheet of ours"


def test_that_what_cannot_be_is_said(frames: Frames) -> None:
    with pytest.raises(UsageError, match="no view 'jobs'; there are job_goodput"):
        frames.view("jobs")
    with pytest.raises(UsageError, match=r"no view 'job_samples'; .*; a job's samples: samples\(job\)"):
        frames.view("job_samples")
    with pytest.raises(UsageError, match="node_usage has no column account"):
        frames.view("node_usage", account="vision")
    with pytest.raises(UsageError, match="since 'yesterday' is not a time"):
        frames.view("job_goodput", since="yesterday")
    with pytest.raises(UsageError, match="is not before"):
        frames.cluster_plots(since="1d", until="2d")
    with pytest.raises(UnknownJobError):
        frames.samples("99")


# The frames and plots of its cells are tested above.
@pytest.mark.full
# The longest of them in `make test-full`.
@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(
            file, marks=[pytest.mark.full] if file.stem == "a_month_of_a_cluster" else [], id=file.stem
        )
        for file in sorted(NOTEBOOKS.glob("*.ipynb"))
    ],
)
def test_that_a_notebook_runs_from_its_first_cell_to_its_last(
    notebook: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It starts from nothing, and is kept without outputs."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.delenv("POLLUX_STORE_URL", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in code] == [[] for _ in code]
    client = NotebookClient(found, timeout=600, resources={"metadata": {"path": str(notebook.parent)}})
    client.execute()
    charts = [one for cell in code for one in cell.outputs if "image/svg+xml" in str(one)]
    assert len(charts) >= 3
