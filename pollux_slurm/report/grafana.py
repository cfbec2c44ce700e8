"""A Grafana dashboard over the reporting views, for its PostgreSQL data source or the SQLite plug-in.

Queries are plain SQL but for four marks, which the two data sources spell differently: `@time(c)` is the
moment c as Grafana wants it, `@day(c)` the begin of day c, `@within(c)` and `@days(c)` hold where a moment or
a day lies in the range that the dashboard shows. `${account:sqlstring}` and `${job:sqlstring}` are the
dashboard's variables, which Grafana quotes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pollux_slurm.errors import UsageError

DATABASES = ("postgresql", "sqlite")
_SOURCES = {
    "postgresql": ("grafana-postgresql-datasource", "PostgreSQL"),
    "sqlite": ("frser-sqlite-datasource", "SQLite"),
}
_MARKS = {
    "postgresql": {
        "time": r'\1 AS "time"',
        "day": "\\1::timestamp AT TIME ZONE 'UTC' AS \"time\"",
        "within": r"$__timeFilter(\1)",
        "days": r"\1 BETWEEN ($__timeFrom()::timestamptz AT TIME ZONE 'UTC')::date"
        r" AND ($__timeTo()::timestamptz AT TIME ZONE 'UTC')::date",
    },
    "sqlite": {
        "time": r"CAST(strftime('%s', \1) AS INTEGER) AS time",
        "day": r"CAST(strftime('%s', \1) AS INTEGER) AS time",
        "within": r"\1 BETWEEN datetime($__from / 1000, 'unixepoch') AND datetime($__to / 1000, 'unixepoch')",
        "days": r"\1 BETWEEN date($__from / 1000, 'unixepoch') AND date($__to / 1000, 'unixepoch')",
    },
}
_ACCOUNT = "account IN (${account:sqlstring})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """One panel, in Grafana's grid of 24 columns. A query over time has a column `time`, and each row's text
    names its line."""

    title: str
    kind: str
    query: str
    width: int
    height: int = 8
    unit: str = "short"
    over_time: bool = False
    text: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    custom: tuple[tuple[str, Any], ...] = ()


_STACKED = (("drawStyle", "bars"), ("fillOpacity", 80), ("stacking", {"mode": "normal", "group": "A"}))
_STEPS = (("lineInterpolation", "stepAfter"), ("fillOpacity", 10))
_ONE = (("reduceOptions", {"calcs": ["lastNotNull"], "fields": "", "values": False}), ("graphMode", "none"))
_ALL = (("reduceOptions", {"calcs": [], "fields": "", "values": True}), ("displayMode", "basic"))

_PANELS = (
    _Panel(
        title="GPU hours held",
        kind="stat",
        width=6,
        height=4,
        options=_ONE,
        query=f"SELECT SUM(gpu_hours) AS gpu_hours FROM account_usage WHERE @days(day) AND {_ACCOUNT}",
    ),
    _Panel(
        title="GPU hours with progress",
        kind="stat",
        width=6,
        height=4,
        unit="percentunit",
        options=_ONE,
        text="Share of the GPU hours held during which reports told of training.",
        query="SELECT SUM(progress_share * gpu_hours) / SUM(gpu_hours) AS progress_share FROM account_usage "
        f"WHERE @days(day) AND gpu_hours > 0 AND {_ACCOUNT}",
    ),
    _Panel(
        title="Moves of running jobs",
        kind="stat",
        width=6,
        height=4,
        options=_ONE,
        query="SELECT COUNT(*) AS moves FROM reallocation_history "
        f"WHERE @within(planned_at) AND step = 'confirmed' AND moves_running AND {_ACCOUNT}",
    ),
    _Panel(
        title="Jobs worse off than on a fair share",
        kind="stat",
        width=6,
        height=4,
        unit="percentunit",
        options=_ONE,
        text="Share of the jobs with finish-time fairness ρ above 1.",
        query="SELECT AVG(CASE WHEN rho > 1 THEN 1.0 ELSE 0.0 END) AS share FROM fairness "
        f"WHERE @within(submitted_at) AND rho IS NOT NULL AND {_ACCOUNT}",
    ),
    _Panel(
        title="GPU hours by account and day",
        kind="timeseries",
        width=12,
        unit="h",
        over_time=True,
        custom=_STACKED,
        query="SELECT @day(day), account AS metric, gpu_hours FROM account_usage "
        f"WHERE @days(day) AND {_ACCOUNT} ORDER BY 1, 2",
    ),
    _Panel(
        title="What accounts got for their GPU hours",
        kind="table",
        width=12,
        text="Useful: GPU hours with progress, weighted with statistical efficiency.",
        query="SELECT account, SUM(gpu_hours) AS gpu_hours, SUM(trained_gpu_hours) AS with_progress, "
        "SUM(useful_gpu_hours) AS useful FROM account_usage "
        f"WHERE @days(day) AND {_ACCOUNT} GROUP BY account ORDER BY 2 DESC",
    ),
    _Panel(
        title="GPUs given, and there",
        kind="timeseries",
        width=12,
        over_time=True,
        custom=_STEPS,
        query="SELECT @time(at), num_gpus AS given, total_gpus AS there FROM round_history "
        "WHERE @within(at) ORDER BY 1",
    ),
    _Panel(
        title="Predicted speedup over the fair share",
        kind="timeseries",
        width=12,
        over_time=True,
        custom=_STEPS,
        query="SELECT @time(at), mean_speedup AS mean, min_speedup AS least FROM round_history "
        "WHERE @within(at) ORDER BY 1",
    ),
    _Panel(
        title="Standstill of each move",
        kind="timeseries",
        width=12,
        unit="s",
        over_time=True,
        custom=(("drawStyle", "points"), ("pointSize", 6)),
        query="SELECT @time(planned_at), account AS metric, total_s FROM reallocation_history "
        f"WHERE @within(planned_at) AND step = 'confirmed' AND moves_running AND {_ACCOUNT} ORDER BY 1",
    ),
    _Panel(
        title="Finish-time fairness ρ of jobs",
        kind="histogram",
        width=12,
        text="At 1 or below, sharing the cluster cost the job no time.",
        query=f"SELECT rho FROM fairness WHERE @within(submitted_at) AND rho IS NOT NULL AND {_ACCOUNT}",
    ),
    _Panel(
        title="Users",
        kind="table",
        width=12,
        query="SELECT user_name, account, SUM(gpu_hours) AS gpu_hours, SUM(useful_gpu_hours) AS useful "
        f"FROM user_usage WHERE @days(day) AND {_ACCOUNT} GROUP BY user_name, account "
        "ORDER BY 3 DESC LIMIT 50",
    ),
    _Panel(
        title="Nodes: share of the GPU hours there that jobs held",
        kind="bargauge",
        width=12,
        unit="percentunit",
        options=_ALL,
        query="SELECT node_name, SUM(utilization * offered_gpu_hours) / SUM(offered_gpu_hours) AS used "
        "FROM node_usage WHERE @days(day) AND offered_gpu_hours > 0 GROUP BY node_name ORDER BY 1",
    ),
    _Panel(
        title="Predicted against measured throughput",
        kind="table",
        width=12,
        text="Mean error above 0: the model promised too much.",
        query="SELECT gpu_type, num_gpus, SUM(num_samples) AS samples, "
        "SUM(mean_error * num_samples) / SUM(num_samples) AS mean_error, "
        "SUM(mean_abs_error * num_samples) / SUM(num_samples) AS mean_abs_error "
        f"FROM model_accuracy WHERE @days(day) AND {_ACCOUNT} GROUP BY gpu_type, num_gpus ORDER BY 1, 2",
    ),
    _Panel(
        title="Jobs",
        kind="table",
        width=12,
        query="SELECT slurm_job_id, name, user_name, account, state, gpu_hours, progress_share, goodput, "
        "efficiency, speedup_fair_share, restarts, lost_s FROM job_goodput "
        f"WHERE @within(submitted_at) AND {_ACCOUNT} ORDER BY submitted_at DESC LIMIT 200",
    ),
    _Panel(
        title="Goodput and throughput of job $job",
        kind="timeseries",
        width=24,
        over_time=True,
        text="In examples per second.",
        query="SELECT @time(at), goodput, throughput FROM job_samples WHERE slurm_job_id = ${job:sqlstring} "
        "AND @within(at) ORDER BY 1 LIMIT 20000",
    ),
    _Panel(
        title="What happened to job $job",
        kind="table",
        width=24,
        query="SELECT @time(at), event, num_gpus, num_nodes, span_s, duration_s, run_number, detail "
        "FROM job_timeline WHERE slurm_job_id = ${job:sqlstring} ORDER BY job_id DESC, at, rank LIMIT 500",
    ),
)


def dashboard_json(database: str) -> str:
    """Return the dashboard for `postgresql` or `sqlite` as JSON that Grafana 9 and later imports."""
    return json.dumps(dashboard(database), indent=2, ensure_ascii=False) + "\n"


def dashboard(database: str) -> dict[str, Any]:
    """Return the dashboard as plain containers; raises `UsageError` for another database."""
    if database not in DATABASES:
        raise UsageError(f"no dashboard for {database!r}; there is one for {' and one for '.join(DATABASES)}")
    plugin, name = _SOURCES[database]
    source = {"type": plugin, "uid": "${DS_POLLUX}"}
    x = y = 0
    panels = []
    for number, panel in enumerate(_PANELS, start=1):
        if x + panel.width > 24:
            x, y = 0, y + _PANELS[number - 2].height
        panels.append(_panel(panel, number, x, y, database, source))
        x += panel.width
    return {
        "__inputs": [
            {"name": "DS_POLLUX", "label": f"Pollux store ({name})", "type": "datasource", "pluginId": plugin}
        ],
        "title": "Pollux for Slurm",
        "uid": "pollux-slurm",
        "tags": ["pollux", "slurm"],
        "timezone": "utc",
        "schemaVersion": 37,
        "editable": True,
        "time": {"from": "now-30d", "to": "now"},
        "refresh": "",
        "templating": {"list": _variables(database, source)},
        "panels": panels,
    }


def panel_queries(database: str) -> dict[str, str]:
    """Return every query that the dashboard sends, by panel or variable, as the data source gets it."""
    found = {panel.title: query_for(panel.query, database) for panel in _PANELS}
    return {**found, "variable account": query_for(_ACCOUNTS, database)}


def query_for(query: str, database: str) -> str:
    """Return a query with its marks as the database's data source spells them."""
    for mark, spelt in _MARKS[database].items():
        query = re.sub(rf"@{mark}\((\w+)\)", spelt, query)
    return query


_ACCOUNTS = "SELECT DISTINCT account FROM account_usage WHERE @days(day) ORDER BY 1"


def _variables(database: str, source: dict[str, str]) -> list[dict[str, Any]]:
    account = {
        "name": "account",
        "label": "Account",
        "type": "query",
        "datasource": source,
        "query": query_for(_ACCOUNTS, database),
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }
    job = {
        "name": "job",
        "label": "Job",
        "type": "textbox",
        "query": "",
        "current": {"text": "", "value": ""},
    }
    return [account, job]


def _panel(
    panel: _Panel, number: int, x: int, y: int, database: str, source: dict[str, str]
) -> dict[str, Any]:
    query = query_for(panel.query, database)
    target: dict[str, Any] = {"refId": "A", "datasource": source}
    if database == "postgresql":
        form = "time_series" if panel.over_time else "table"
        target |= {"rawQuery": True, "rawSql": query, "format": form, "editorMode": "code"}
    else:
        form = "time series" if panel.over_time else "table"
        target |= {"queryText": query, "rawQueryText": query, "queryType": form, "timeColumns": ["time"]}
    return {
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "type": panel.kind,
        "datasource": source,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "targets": [target],
        "options": dict(panel.options),
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": dict(panel.custom)}, "overrides": []},
    }
