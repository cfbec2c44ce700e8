"""A job's token: its owner's user id, a dash, and a secret. Only its SHA-256 is ever stored or shown.

The id makes the public hash worth nothing to others: a token is looked up among its own user's jobs only, and
no token of another user has this hash.
"""

from __future__ import annotations

import hashlib
import re

_USER = re.compile(r"([0-9]{1,10})-")


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token in hex, as it stands in the Comment and in the store."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def user_of_token(token: str) -> int | None:
    """Return the id of the user whom a token was made for; None for what is not a token."""
    found = _USER.match(token)
    return None if found is None else int(found[1])
