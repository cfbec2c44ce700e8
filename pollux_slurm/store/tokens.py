"""A job's token: only its SHA-256 is ever stored or shown."""

from __future__ import annotations

import hashlib


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token in hex, as it stands in the Comment and in the store."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
