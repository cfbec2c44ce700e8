"""Parse the reservations of `scontrol show reservations --oneliner` (22.05 to 26.05)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.slurm.parsing.node_constraints import expand_hosts

_FIELD = re.compile(r"(?:^| )(StartTime|EndTime|Nodes)=(\S*)")
OWN_PREFIX = "pollux_"
"""The first letters of the names of the daemon's own reservations, which last while a job moves."""


def reserved_from(lines: Iterable[str], *, now: datetime) -> dict[str, datetime]:
    """Return, by node, when the first of its reservations begins that is not over.

    A reservation of some of a node's CPUs counts as one of the node, and one of the daemon's own as none.
    `now` is a UTC time, as Slurm prints. Raises `SlurmReadError` for a line that cannot be parsed.
    """
    found: dict[str, datetime] = {}
    for line in lines:
        if not line.startswith("ReservationName=") or line.startswith(f"ReservationName={OWN_PREFIX}"):
            continue  # "No reservations in the system"
        fields = dict(_FIELD.findall(line))
        if fields.get("Nodes") in ("", "(null)"):  # of licences, for example
            continue
        try:
            start, end = (
                datetime.fromisoformat(fields[key]).replace(tzinfo=timezone.utc)
                for key in ("StartTime", "EndTime")
            )
            nodes = expand_hosts(fields["Nodes"])
        except (KeyError, ValueError):
            raise SlurmReadError(f"scontrol: cannot parse the reservation {line[:200]!r}") from None
        for name in nodes if end > now else ():
            found[name] = min(start, found.get(name, start))
    return found
