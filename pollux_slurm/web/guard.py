"""Who may look, and what a browser may do with the pages: host names, the token, headers."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pollux_slurm.web.connections import Connections

COOKIE = "pollux_token"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_MOST_COOKIES_BYTES = 4096

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Lets requests through to `app`: to read only, for known host names, with the token if there is one.

    `hosts` are the names by which a browser may call the server, None for any. A page of another site that
    makes its own name point here (DNS rebinding) is refused by its name. A `token` in the address becomes a
    cookie, so that links are shown without it. The connection of a request that is let through is not closed
    before its answer.
    """

    app: ASGIApp
    hosts: frozenset[str] | None
    token: str | None
    connections: Connections = field(default_factory=Connections)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._answer(scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        with self.connections.answering(scope["client"]):
            await self.app(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Callable[[Scope, Receive, Send], Awaitable[None]] | None:
        """Return the refusal of a request, or the way to its address without the token; None to go on."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("this page is read-only\n", 405, {"allow": "GET, HEAD"})
        if self.hosts is not None and _host_name(headers.get("host", "")) not in self.hosts:
            return PlainTextResponse("unknown host name: see pollux web --help\n", 421)
        if self.token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None and self._is_right(given):
            return self._without_token(scope, [pair for pair in query if pair[0] != "token"])
        cookies = headers.get("cookie", "")
        if len(cookies) > _MOST_COOKIES_BYTES:
            return PlainTextResponse(
                "too many cookies for this host name: delete those of other pages\n", 431
            )
        # Whoever serves a page at another port of this host can set one, which may come first.
        if any(map(self._is_right, _our_cookies(cookies))):
            return None
        return PlainTextResponse("a token is needed: open the link that pollux web printed\n", 403)

    def _is_right(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _without_token(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        # A relative address: a proxy may have put a prefix before the path.
        last = quote(scope["path"].rpartition("/")[2], safe="") or "."
        response = Response(
            status_code=303, headers={"location": last + (f"?{urlencode(query)}" if query else "")}
        )
        response.set_cookie(
            COOKIE, self.token or "", httponly=True, samesite="lax", path=scope.get("root_path") or "/"
        )
        return response


def _host_name(host: str) -> str:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.strip("[]").lower()


def _our_cookies(header: str) -> list[str]:
    """Return values of our cookie's name. `http.cookies` takes the square of the length in time."""
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return [value for name, _, value in pairs if name == COOKIE]
