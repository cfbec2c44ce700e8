"""Find and redact passwords in a store's URL, before any library has parsed it.

An invalid URL is redacted too, for the error message that shows it. When in doubt, more is redacted.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

HIDDEN = "***"
_USER = re.compile(r"//[^:/@]*:")
_PAIR = re.compile(r"([?&;])([^?=&;]*)=([^&;]*)")
_URL = re.compile(r"postgres\w{0,20}(?:\+\w{1,20})?://[^\s'\"`<>|()]+")


def redacted(url: str) -> str:
    """Return a URL without its passwords: its user's, and those of libpq's options."""
    # From the first colon after the user name to the last @: a password may contain both.
    before, at, after = url.rpartition("@")
    user = _USER.search(before)
    return _PAIR.sub(_without_value, f"{before[: user.end()]}{HIDDEN}{at}{after}" if user else url)


def holds_password(url: str) -> bool:
    """Return whether a URL contains a password."""
    return redacted(url) != url


def lines_with_passwords(text: str) -> list[int]:
    """Return the numbers of the lines of a script that have a PostgreSQL URL with a password.

    A variable (`$PASSWORD`) is not a password.
    """
    return [
        number
        for number, line in enumerate(text.split("\n"), start=1)
        if any(holds_password(_VARIABLE.sub(HIDDEN, found)) for found in _URL.findall(line))
    ]


_VARIABLE = re.compile(r"\$(?:\{\w+\}|\w+)")


def _without_value(pair: re.Match[str]) -> str:
    key = unquote_plus(pair[2]).lower()
    # password, sslpassword; of newer releases scram_client_key, scram_server_key, oauth_client_secret.
    secret = any(word in key for word in ("password", "secret", "scram_"))
    return f"{pair[1]}{pair[2]}={HIDDEN}" if secret else pair[0]
