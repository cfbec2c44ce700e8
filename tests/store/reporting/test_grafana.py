"""Every query of the Grafana dashboard runs on the database that it is for, and finds what is there."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any

import pytest

from pollux_slurm.resources import resource_dir
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.schema.views import VIEWS
from tests.report.stories import AFTER, fill
from tests.store.builders import at

FROM, TO = at(-3600), at(3600)
DATABASES = ("postgresql", "sqlite")


def dashboard(database: str) -> dict[str, Any]:
    file = resource_dir("sql") / "grafana" / f"{database}.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def panel_queries(database: str) -> dict[str, str]:
    """Return every query that the dashboard sends, by panel or variable."""
    found = dashboard(database)
    key = "rawSql" if database == "postgresql" else "queryText"
    queries = {panel["title"]: target[key] for panel in found["panels"] for target in panel["targets"]}
    variables = {
        f"variable {one['name']}": one["query"]
        for one in found["templating"]["list"]
        if one["type"] == "query"
    }
    return {**queries, **variables}


def as_grafana_sends_it(query: str, *, job: str = "1") -> str:
    """Return a query with macros and variables replaced as the data sources document it."""

    def iso(moment: datetime) -> str:
        return f"'{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}'"

    query = re.sub(r"\$__timeFilter\((\w+)\)", rf"\1 BETWEEN {iso(FROM)} AND {iso(TO)}", query)
    query = query.replace("$__timeFrom()", iso(FROM)).replace("$__timeTo()", iso(TO))
    for name, moment in (("$__from", FROM), ("$__to", TO)):
        query = query.replace(name, str(int(moment.timestamp() * 1000)))
    accounts = ("vision", "physics", "", "it's")
    quoted = ",".join("'" + account.replace("'", "''") + "'" for account in accounts)
    query = query.replace("${account:sqlstring}", quoted).replace("${job:sqlstring}", f"'{job}'")
    assert not re.search(r"[$@]", query), f"a mark that nobody replaces: {query}"
    return query


def answers(store: Store) -> dict[str, list[dict[str, Any]]]:
    fill(store)
    found = {}
    with store.database.read() as connection:  # type: ignore[attr-defined]
        database = connection.dialect.name
        for title, query in panel_queries(database).items():
            sent = as_grafana_sends_it(query)
            # psycopg would take a % for a parameter.
            rows = connection.exec_driver_sql(sent if database == "sqlite" else sent.replace("%", "%%"))
            found[title] = [dict(row._mapping) for row in rows]
    return found


def test_that_every_query_runs_and_returns_what_the_views_return(any_store: Store) -> None:
    found = answers(any_store)
    assert [title for title, rows in found.items() if not rows] == []
    assert found["Moves of running jobs"] == [{"moves": 1}]
    assert found["Restart delay of each move"][0]["total_s"] == pytest.approx(12.5, abs=0.01)
    assert [row["allocated"] for row in found["GPUs allocated and available"]] == [8, 8]
    goodputs = [row["goodput"] for row in found["Goodput and throughput of job $job"]]
    assert goodputs[-4:] == pytest.approx([throughput * efficiency for throughput, efficiency in AFTER])
    assert {row["slurm_job_id"] for row in found["Jobs"]} == {"1", "2", "3"}
    assert {row["account"] for row in found["variable account"]} == {"vision", "physics"}
    (vision,) = [row for row in found["GPU hours and their use by account"] if row["account"] == "vision"]
    assert 0 < vision["useful"] < vision["with_progress"] < vision["gpu_hours"]
    assert [row["event"] for row in found["What happened to job $job"]][:3] == [
        "submitted",
        "started",
        "allocated",
    ]


def test_that_times_are_what_grafana_takes_for_times(any_store: Store) -> None:
    found = answers(any_store)
    (first, _) = [row["time"] for row in found["GPUs allocated and available"]]
    (day, *_) = [row["time"] for row in found["GPU hours by account and day"]]
    midnight = at(0).replace(hour=0)
    if isinstance(first, int):  # the SQLite plug-in takes seconds since 1970
        assert (first, day) == (int(at(6).timestamp()), int(midnight.timestamp()))
    else:
        assert (first, day) == (at(6), midnight)


@pytest.mark.parametrize("database", DATABASES)
def test_that_the_dashboard_uses_every_view(database: str) -> None:
    queries = " ".join(panel_queries(database).values())
    assert {view for view in VIEWS if re.search(rf"FROM {view}\b", queries)} == set(VIEWS) - {
        "calendar",
        "job_kinds",
    }


@pytest.mark.parametrize("database", [*DATABASES, "prometheus"])
def test_that_each_place_is_used_once(database: str) -> None:
    panels = dashboard(database)["panels"]
    places = [
        (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
        for panel in panels
        for dx in range(panel["gridPos"]["w"])
        for dy in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
    source = {panel["targets"][0]["datasource"]["uid"] for panel in panels}
    assert source == {"${" + dashboard(database)["__inputs"][0]["name"] + "}"}


def test_that_both_dashboards_show_the_same() -> None:
    one, other = (dashboard(database) for database in DATABASES)
    shown = ("id", "title", "description", "type", "gridPos", "options", "fieldConfig")
    assert [[panel[key] for key in shown] for panel in one["panels"]] == [
        [panel[key] for key in shown] for panel in other["panels"]
    ]
    assert panel_queries("postgresql").keys() == panel_queries("sqlite").keys()
    for key in ("title", "uid", "time", "timezone"):
        assert one[key] == other[key]


def test_that_what_grafana_shows_of_a_query_is_what_it_sends() -> None:
    for panel in dashboard("sqlite")["panels"]:
        for target in panel["targets"]:
            assert target["rawQueryText"] == target["queryText"]
