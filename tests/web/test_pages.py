"""What the pages show, and what they say where they cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from pollux_slurm.document.columns import Column, in_order
from pollux_slurm.document.forms import html
from pollux_slurm.errors import StoreUnavailable
from pollux_slurm.now.cluster import read_cluster
from pollux_slurm.store import open_store
from pollux_slurm.store.reporting.queries import open_view_reader
from pollux_slurm.store.reporting.view_rows import JobGoodput
from pollux_slurm.web.app import NAVIGATION, Source, make_app
from pollux_slurm.web.guard import LOOPBACK
from pollux_slurm.web.now import now_page
from pollux_slurm.web.pages import SORTS
from pollux_slurm.web.server import opened_source
from tests.report.parsed import Element, parse
from tests.report.stories import HOSTILE
from tests.store.builders import at, observation, registration, report, token_of


def page(client: TestClient, path: str) -> Element:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return parse(answer.text.replace("<!DOCTYPE html>", ""))


@pytest.mark.parametrize(
    "path", [f"/{path}" for path, _ in NAVIGATION] + ["/jobs/1", "/jobs/2", "/accounts/vision"]
)
def test_that_a_page_loads_only_what_is_its_own(client: TestClient, path: str) -> None:
    found = page(client, path)
    up = "../" * (path.count("/") - 1)
    addresses = [
        one.attributes.get("src") or one.attributes.get("href", "")
        for one in found.all("script") + found.all("link")
    ]
    assert all(one.startswith((f"{up}static/", "data:", "")) and "//" not in one for one in addresses)
    assert HOSTILE not in client.get(path).text
    assert len(found.all("h1")) == 1


def test_that_now_shows_who_holds_which_gpus(client: TestClient) -> None:
    found = page(client, "/")
    rows = {
        row.all("span", kind="node-name")[0].text.strip(): row
        for row in found.all("li")
        if row.all("span", kind="gpus")
    }
    (held,) = rows["n3"].all("a")
    assert (held.text, held.attributes["href"]) == ("2", "jobs/2")
    assert (
        "no daemon has run on this store yet" in found.texts().lower()
        or "last round" in found.texts().lower()
    )
    (jobs,) = found.all("table")[:1]
    assert [row.all("th")[0].texts().strip() for row in jobs.all("tbody")[0].all("tr")] == ["2", "3"]


def test_that_now_has_measurements_of_the_present_gpus_only(store_url: str) -> None:
    store = open_store(store_url)
    store.jobs.register([registration(1)], at=at(0))

    def measured() -> tuple[object, ...]:
        return now_page(read_cluster(store, now=at(100))).jobs.rows[0][5:8]

    store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(1))], at=at(1))
    store.agent.report(token_of(1), report(1, throughput=100.0, efficiency=0.5), at=at(8))
    assert measured() == (2, 256, 50.0)
    store.jobs.observe([observation(1, gpus={"n0": 4}, started_at=at(20), restart_count=1)], at=at(21))
    assert measured() == (4, None, None)
    store.close()


@pytest.mark.parametrize("column", SORTS, ids=lambda column: column.key)
def test_that_jobs_stand_in_the_order_of_the_column_that_was_chosen(
    client: TestClient, story_url: str, column: Column
) -> None:
    with open_view_reader(story_url) as reader:
        jobs = sorted(reader.rows(JobGoodput).rows, key=lambda job: job.slurm_job_id)
    shown = [
        row.texts() for row in page(client, f"/jobs?since=9999d&sort={column.key}").all("th", scope="row")
    ]
    assert [one.strip() for one in shown] == [job.slurm_job_id for job in in_order(jobs, column)]


def test_that_jobs_are_found_sorted_and_linked(client: TestClient) -> None:
    def numbers(query: str) -> list[str]:
        return [cell.texts().strip() for cell in page(client, f"/jobs?{query}").all("th", scope="row")]

    assert sorted(numbers("")) == ["1", "2", "3"]
    assert numbers("sort=gpu_hours")[0] == "2", "it holds its GPU until now"
    assert numbers("q=train-1") == ["1"]
    assert numbers("q=EDSGER") == ["3"]
    assert numbers("state=completed") == ["1"]
    assert numbers("account=vision") == ["1"]
    assert numbers("q=nobody") == []
    (link,) = [one for one in page(client, "/jobs?q=train-1").all("a") if one.attributes["href"] == "jobs/1"]
    assert link.text == "1"


def test_that_a_state_that_no_job_has_stays_chosen(client: TestClient) -> None:
    (states,) = [
        one for one in page(client, "/jobs?state=failed").all("select") if one.attributes["name"] == "state"
    ]
    assert [one.text for one in states.all("option") if "selected" in one.attributes] == ["failed"]
    assert [one.text for one in states.all("option")] == ["all", "completed", "failed", "pending", "running"]


def test_that_every_job_is_on_one_of_the_pages(store_url: str) -> None:
    store = open_store(store_url)
    store.jobs.register([registration(number) for number in range(1, 121)], at=at(0))
    store.close()
    with opened_source(store_url) as source:
        later = replace(source, clock=lambda: at(120))
        client = TestClient(make_app(later, hosts=LOOPBACK, token=None), base_url="http://127.0.0.1")
        seen, address = list[str](), "?"
        while address:
            found = page(client, f"/jobs{address}")
            seen += [cell.texts().strip() for cell in found.all("th", scope="row")]
            address = "".join(one.attributes["href"] for one in found.all("a") if one.text == "next →")
    assert len(seen) == 120
    assert set(seen) == {str(number) for number in range(1, 121)}


def test_that_the_command_for_all_rows_names_the_range_and_the_account(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "MOST_ROWS", 1)
    dates = "--since 2026-02-01T00:00:00 --until 2026-03-01T12:02:00"
    for path, words, key in (
        ("jobs", "cluster", "jobs"),
        ("accounts/vision", "account vision", "model_accuracy"),
    ):
        text = client.get(f"/{path}?since=2026-02-01&until=2026-03-05").text
        assert f"all: pollux report {words} {dates} --csv --table {key}" in text


def test_that_a_job_links_its_account_and_keeps_the_range_for_other_pages(client: TestClient) -> None:
    assert 'href="jobs/1?since=365d"' in client.get("/jobs?since=365d").text
    text = client.get("/jobs/1?since=365d").text
    assert '<a href="../accounts/vision?since=365d">vision</a>' in text
    assert 'href="../moves?since=365d"' in text


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/jobs/99", 404, "job 99 is not known"),
        ("/accounts/nobody", 404, "has no adaptive job"),
        ("/nothing", 404, "there is no such page"),
        ("/static/../../pyproject.toml", 404, "no such"),
        ("/jobs?since=yesterday", 400, "is not a time"),
        ("/jobs?sort=luck", 400, "not sorted by"),
        ("/jobs?page=0", 400, "no page"),
        ("/jobs?page=²", 400, "no page"),
        (f"/jobs?page={'9' * 5000}", 400, "no page"),
        (f"/jobs?since={'9' * 5000}d", 400, "a hundred years ago"),
        (f"/jobs?since=2026-{'9' * 5000}", 400, "is not a time"),
    ],
)
def test_that_what_cannot_be_shown_is_said(client: TestClient, path: str, status: int, words: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert words in answer.text


def test_that_a_store_that_is_away_is_said_and_comes_back(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = TestClient(make_app(source, hosts=LOOPBACK, token=None), base_url="http://127.0.0.1")

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the store cannot be reached: no route to host")

    with monkeypatch.context() as patched:
        patched.setattr(source.reader, "rows", away)
        answer = client.get("/jobs")
        assert answer.status_code == 503
        assert "cannot be reached" in answer.text
    assert client.get("/jobs").status_code == 200


def test_that_a_login_that_reads_views_only_sees_all_other_pages(source: Source) -> None:
    bare = replace(source, store=None, why_no_store="this login may not read its tables")
    client = TestClient(make_app(bare, hosts=LOOPBACK, token=None), base_url="http://127.0.0.1")
    assert "this login may not read its tables" in client.get("/").text
    assert client.get("/jobs/1").status_code == 200


def test_that_links_keep_what_was_chosen(client: TestClient) -> None:
    found = page(client, "/jobs?q=train&state=completed&since=7d")
    ranges = [one.attributes["href"] for one in found.all("a") if one.text.startswith("last ")]
    assert ranges[0] == "?q=train&state=completed&since=1d"
    by_words, by_dates = found.all("form")
    assert hidden(by_words) == {"since": "7d"}
    assert hidden(by_dates) == {"q": "train", "state": "completed"}
    pages = {one.text: one.attributes["href"] for one in found.all("nav")[0].all("a")}
    assert (pages["Now"], pages["Moves"]) == ("./", "moves?since=7d")


def hidden(form: Element) -> dict[str, str]:
    """Return what a form sends beside its fields."""
    found = [one.attributes for one in form.all("input") if one.attributes.get("type") == "hidden"]
    return {one["name"]: one["value"] for one in found}


def test_that_a_range_is_chosen_by_dates(client: TestClient) -> None:
    found = page(client, "/moves?since=2026-02-01&until=2026-03-05")
    dates = [one.attributes for one in found.all("input") if one.attributes.get("type") == "date"]
    assert [(one["name"], one["value"]) for one in dates] == [
        ("since", "2026-02-01"),
        ("until", "2026-03-05"),
    ]
    assert "2026-02-01 00:00 to 2026-03-01 12:02 UTC" in found.texts(), "nothing is known of the future"
    (since, _) = (
        one for one in page(client, "/moves?since=7d").all("input") if one.attributes["type"] == "date"
    )
    assert since.attributes["value"] == ""


def test_that_charts_are_pictures_for_readers_without_scripts(client: TestClient) -> None:
    assert "<svg" not in client.get("/jobs/1").text
    text = client.get("/jobs/1?static=1").text
    assert text.count("<svg") >= 3
    assert "application/json" not in text


def test_that_an_account_may_have_any_name(client: TestClient) -> None:
    assert client.get("/accounts/a%2Fb%20%3Cc%3E").status_code == 404
    assert "<c>" not in client.get("/accounts/a%2Fb%20%3Cc%3E").text


@pytest.mark.parametrize("name", ["x" * 150, "weird\x1b[0m", "a b/c?d#e", "(none)", "100%"])
def test_that_a_link_leads_to_the_account_whatever_its_name(store_url: str, name: str) -> None:
    store = open_store(store_url)
    store.jobs.register([registration(1, account=name)], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 1}, started_at=at(4))], at=at(5))
    store.close()
    with opened_source(store_url) as source:
        later = replace(source, clock=lambda: at(120))
        client = TestClient(make_app(later, hosts=LOOPBACK, token=None), base_url="http://127.0.0.1")
        for path in ("/", "/accounts", "/jobs", "/jobs/1"):
            links = [one.attributes["href"] for one in page(client, path).all("a")]
            (link,) = {one for one in links if "accounts/" in one}
            answer = client.get(f"/{link.removeprefix('../')}")
            assert (answer.status_code, "Adaptive jobs, 2026" in answer.text) == (200, True), link


def test_that_a_link_to_an_account_keeps_the_range(client: TestClient) -> None:
    text = client.get("/accounts?since=365d").text
    assert 'href="accounts/vision?since=365d"' in text
    assert 'href="accounts/vision"' in client.get("/accounts").text


def test_that_an_account_without_jobs_in_a_range_offers_others(client: TestClient) -> None:
    answer = client.get("/accounts/vision?since=2001-01-01&until=2001-02-01")
    assert answer.status_code == 404
    assert '"?since=365d"' in answer.text
    assert "since=365d" not in client.get("/jobs/999999").text


def test_that_a_page_says_where_it_has_not_everything(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = page(client, "/jobs").texts()
    assert "the newest rows only" not in whole
    monkeypatch.setattr("pollux_slurm.web.pages.MOST_ROWS", 2)
    cut = page(client, "/jobs").texts()
    assert "of job_goodput it has the newest rows only" in cut
    assert "2 adaptive jobs, submitted from 2026-02-22 12:02 to 2026-03-01 12:02 UTC" in cut
