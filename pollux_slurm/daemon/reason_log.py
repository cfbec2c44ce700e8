"""What the log says of jobs: each reason in the first round that has it, and not in every round."""

from __future__ import annotations

import logging
from collections.abc import Mapping

_log = logging.getLogger(__name__)


class ReasonLog:
    """Remembers, by text, which reasons the last round had."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, str]] = {}

    def warn(self, text: str, reasons: Mapping[str, str]) -> None:
        """Log `text`, with two places, for each job and reason that the last round had not."""
        known = self._known.get(text, {})
        for job_id, reason in reasons.items():
            if known.get(job_id) != reason:
                _log.warning(text, job_id, reason)
        self._known[text] = dict(reasons)
