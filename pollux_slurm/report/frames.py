"""Views of the store as pandas frames, and the plots of reports as Altair charts: for notebooks.

Needs the extra `view`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

from pollux_slurm.config import load_config
from pollux_slurm.document.charts.rendering import notebook_chart
from pollux_slurm.document.charts.time_axes import Range, parse_moment
from pollux_slurm.document.document import Document
from pollux_slurm.errors import UsageError
from pollux_slurm.extras import INSTALL_VIEW
from pollux_slurm.report.group import account_document, cluster_document
from pollux_slurm.report.job import job_document
from pollux_slurm.report.reading import read_group, read_job
from pollux_slurm.store.reporting.queries import MOST_ROWS, ViewReader, column_types, open_view_reader
from pollux_slurm.store.reporting.view_rows import ROW_TYPES, SamplePoint

if TYPE_CHECKING:
    import pandas as pd
    from altair.typing import ChartType

VIEWS: dict[str, type[Any]] = {kind.VIEW: kind for kind in ROW_TYPES}
"""The class of rows of each view, by the view's name; docs/sql.md says what their columns mean."""

_TYPES = {datetime: "datetime64[us, UTC]", date: "datetime64[s, UTC]", int: "Int64", float: "float64"}
_TYPES |= {bool: "boolean", str: "string"}
_CATEGORIES = frozenset(
    {"account", "user_name", "partition", "state", "event", "cause", "way", "step", "objective", "solver"}
    | {"node_name", "gpu_type"}
)
_SAMPLE_TYPES = {"at": _TYPES[datetime], **dict.fromkeys(("run_number", "num_gpus", "epoch"), "Int64")}

Moment = str | datetime
"""An aware time, or a text such as 30d (ago), 2026-10-01 or 2026-10-01T12:00 (UTC)."""


class Frames:
    """Read what a login may see of one store, as pandas frames and Altair charts. `open_frames` makes one.

    Every query is bounded and read-only.

    Args:
        reader: The open store.

    Examples:
        >>> with open_frames() as frames:
        ...     usage = frames.view("account_usage", since="2026-01-01")
        ...     jobs = frames.view("job_goodput", account="vision")
        ...     samples = frames.samples("1")
        >>> jobs["slurm_job_id"].tolist()
        ['1']
    """

    def __init__(self, reader: ViewReader) -> None:
        self._reader = reader

    def view(
        self,
        name: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        job: str | None = None,
        account: str | None = None,
        user: str | None = None,
        limit: int = MOST_ROWS,
    ) -> pd.DataFrame:
        """Return the rows of one of `VIEWS`, the oldest first.

        Times are aware, in UTC; days are midnights; numbers that may be unknown are nullable.

        Args:
            name: The view's name (docs/sql.md).
            since: The beginning: an aware time, or a text such as 30d (ago) or 2026-10-01 (UTC). It selects
                jobs by submission, moves by `planned_at`, usage by day, else by `at`. None: from the first
                row on.
            until: The end, as `since`. None: up to the last row.
            job: A Slurm job id. None: of all jobs.
            account: A Slurm account. None: of all accounts.
            user: A user's login name. None: of all users.
            limit: The most rows. Where there are more, the newest are returned, and `attrs["truncated"]` is
                True.

        Raises:
            UsageError: An unknown view, or a selection by what the view does not have.
            UnknownJobError: An unknown job.
        """
        if name not in VIEWS:
            raise UsageError(f"no view {name!r}; there are {', '.join(VIEWS)}; a job's samples: samples(job)")
        found = self._reader.rows(
            VIEWS[name],
            since=_moment(since, "since"),
            until=_moment(until, "until"),
            slurm_job_id=job,
            account=account,
            user_name=user,
            limit=limit,
        )
        types = {
            column: "category" if column in _CATEGORIES else _TYPES[of]
            for column, (_, of) in column_types(VIEWS[name]).items()
        }
        rows = [{column: getattr(row, column) for column in types} for row in found.rows]
        frame: pd.DataFrame = _pandas().DataFrame(rows, columns=list(types)).astype(types)
        frame.attrs["truncated"] = found.truncated
        return frame

    def samples(self, job: str, *, max_points: int = 5000) -> pd.DataFrame:
        """Return a job's goodput samples, the oldest first. Rates are in examples per second.

        Args:
            job: A Slurm job id.
            max_points: The samples are averaged to about so many rows.

        Raises:
            UnknownJobError: An unknown job.
        """
        names = [one.name for one in fields(SamplePoint) if one.name != "batch"]
        rows = [
            {name: getattr(point, name) for name in names}
            | {"global_batch_size": None if point.batch is None else point.batch.global_batch_size}
            for point in self._reader.samples(job, max_points=max_points)
        ]
        types = {
            name: _SAMPLE_TYPES.get(name, "Int64" if name.startswith("num_") else "float64") for name in names
        }
        types["global_batch_size"] = "Int64"
        frame: pd.DataFrame = _pandas().DataFrame(rows, columns=list(types)).astype(types)
        return frame

    def job_plots(self, job: str) -> dict[str, ChartType]:
        """Return the plots of `pollux report job`, by title.

        Args:
            job: A Slurm job id.

        Raises:
            UnknownJobError: An unknown job.

        Examples:
            >>> with open_frames() as frames:
            ...     plots = frames.job_plots("1")
            >>> plots["Goodput and GPUs over time"].save("goodput.html")
        """
        return _plots(job_document(read_job(self._reader, job), made_at=_now()))

    def account_plots(
        self, account: str | None = None, *, since: Moment = "30d", until: Moment = "now"
    ) -> dict[str, ChartType]:
        """Return the plots of `pollux report account`, by title.

        Args:
            account: A Slurm account. None: of all accounts.
            since: The beginning: an aware time, or a text such as 30d (ago) or 2026-10-01 (UTC).
            until: The end, as `since`.

        Raises:
            UsageError: `since` is not before `until`.

        Examples:
            >>> with open_frames() as frames:
            ...     plots = frames.account_plots("vision", since="2026-01-01")
        """
        range_ = _range(since, until)
        history = read_group(self._reader, range_, account=account)
        return _plots(account_document(history, range_, account=account, made_at=_now(), command=""))

    def cluster_plots(self, *, since: Moment = "30d", until: Moment = "now") -> dict[str, ChartType]:
        """Return the plots of `pollux report cluster`, by title.

        Args:
            since: The beginning: an aware time, or a text such as 30d (ago) or 2026-10-01 (UTC).
            until: The end, as `since`.

        Raises:
            UsageError: `since` is not before `until`.

        Examples:
            >>> with open_frames() as frames:
            ...     plots = frames.cluster_plots(since="2026-01-01")
        """
        range_ = _range(since, until)
        history = read_group(self._reader, range_)
        return _plots(cluster_document(history, range_, made_at=_now(), command=""))


@contextmanager
def open_frames(url: str | None = None) -> Iterator[Frames]:
    """Open a store for reading, as a context.

    Args:
        url: The store's URL, such as `sqlite:////var/lib/pollux/pollux.db`. None: that of the settings or of
            POLLUX_STORE_URL.

    Raises:
        ConfigError: No store is set, or its URL is not valid.
        SchemaVersionError: The store's schema is of another version; the message has the command to type.
        StoreUnavailable: The database cannot be reached.

    Examples:
        >>> with open_frames() as frames:
        ...     jobs = frames.view("job_goodput")
        >>> len(jobs)
        3
    """
    with open_view_reader(load_config(os.environ).require_store_url() if url is None else url) as reader:
        yield Frames(reader)


def _plots(document: Document) -> dict[str, ChartType]:
    return {plot.chart.title: notebook_chart(plot.chart) for part in document.parts for plot in part.plots}


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise UsageError(f"frames need pandas; {INSTALL_VIEW}") from None
    return pd


def _range(since: Moment, until: Moment) -> Range:
    begin, end = _moment(since, "since"), _moment(until, "until")
    assert begin is not None
    assert end is not None
    end = min(end, _now())
    if begin >= end:
        raise UsageError(f"since {since!r} is not before until {until!r}")
    return Range(since=begin, until=end)


def _moment(wanted: Moment | None, option: str) -> datetime | None:
    return parse_moment(wanted, now=_now(), option=option) if isinstance(wanted, str) else wanted


def _now() -> datetime:
    return datetime.now(timezone.utc)
