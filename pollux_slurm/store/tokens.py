"""A job's token: only its SHA-256 is ever stored or shown."""

from __future__ import annotations

import hashlib
import secrets


def new_token() -> str:
    """Return a fresh random token of 256 bits as text."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token in hex, as it stands in the Comment and in the store."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
