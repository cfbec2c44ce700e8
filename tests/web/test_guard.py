"""Who may look at the pages, and what a browser may do with them."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from pollux_slurm.web.app import Source, make_app
from pollux_slurm.web.guard import COOKIE, LOOPBACK

TOKEN = "a-token-of-twenty-four-bytes"


def guarded(source: Source, **more: Any) -> TestClient:
    app = make_app(source, hosts=None, token=TOKEN)
    return TestClient(app, base_url="http://node7:8265", follow_redirects=False, **more)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_that_nothing_but_reading_is_allowed(client: TestClient, method: str) -> None:
    answer = client.request(method, "/jobs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert client.head("/jobs").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8265", 200),
        ("localhost", 200),
        ("[::1]:8265", 200),
        ("LOCALHOST:80", 200),
        ("evil.example:8265", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_that_another_sites_name_for_this_address_is_refused(
    client: TestClient, host: str, status: int
) -> None:
    """So that a page of that site cannot read ours (DNS rebinding)."""
    assert client.get("/jobs", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("path", "location"),
    [("/", "."), ("/accounts/שלום", "%D7%A9%D7%9C%D7%95%D7%9D"), ("/accounts/a%20b%3Ac", "a%20b%3Ac")],
)
def test_that_the_address_without_the_token_is_that_of_the_same_page(
    source: Source, path: str, location: str
) -> None:
    answer = guarded(source).get(f"{path}?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, location)


def test_that_a_token_in_the_link_becomes_a_cookie_and_leaves_the_address(source: Source) -> None:
    client = guarded(source)
    assert client.get("/jobs").status_code == 403
    assert client.get("/jobs?token=wrong").status_code == 403
    first = client.get(f"/jobs?since=7d&token={TOKEN}")
    assert (first.status_code, first.headers["location"]) == (303, "jobs?since=7d")
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert client.get("/jobs?since=7d").status_code == 200
    assert client.get(f"/?token={TOKEN}").headers["location"] == "."
    assert guarded(source, cookies={COOKIE: "wrong"}).get("/jobs").status_code == 403


@pytest.mark.parametrize(
    "cookies",
    [
        f"{COOKIE}={TOKEN}",
        f"theme=dark; {COOKIE}={TOKEN}",
        f"a b; {{}}=[1]; ;{COOKIE}={TOKEN};other={'x' * 4000}",
        # Another port of this host has set one.
        f"{COOKIE}={TOKEN}; {COOKIE}=of-another-page",
        f"{COOKIE}=of-another-page; {COOKIE}=; {COOKIE}={TOKEN}",
    ],
)
def test_that_the_cookie_is_found_among_those_of_other_pages(source: Source, cookies: str) -> None:
    assert guarded(source).get("/jobs", headers={"cookie": cookies}).status_code == 200


def test_that_more_than_four_kilobytes_of_cookies_are_not_read(source: Source) -> None:
    """`http.cookies` takes seconds for 60 kB, before anything is proved."""
    client = guarded(source)
    answer = client.get("/jobs", headers={"cookie": f'{COOKIE}={TOKEN}; x="' + "\\" * 60_000})
    assert (answer.status_code, "delete those of other pages" in answer.text) == (431, True)


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/99", "/static/style.css", "/nothing"])
def test_that_every_answer_has_secure_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe-eval" not in policy
    assert "http" not in policy
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert headers["cache-control"] == ("max-age=86400" if "static" in path else "no-store")


def test_that_a_proxys_prefix_is_no_part_of_any_link(source: Source) -> None:
    app = make_app(source, hosts=LOOPBACK, token=None)
    client = TestClient(app, base_url="http://127.0.0.1", root_path="/node/n7/8265")
    text = client.get("/node/n7/8265/jobs/1").text
    assert 'href="../jobs"' in text
    assert 'href="../"' in text
    assert "/node/" not in text
