"""Parse a job's node constraints (--nodelist, --exclude, --constraint), and why Slurm does not start it.

hosts          n0    n[0-3,7],m1    rack[1-2]n[01-03]
constraint     a100    fast&big    a100|h100    [rack1|rack2]
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pollux_slurm.slurm.parsing.json_fields import Fields

_FEATURE = r"[A-Za-z0-9_.:=/+-]+"
_ALL_OF = re.compile(rf"{_FEATURE}(?:&{_FEATURE})*")
_ANY_OF = re.compile(rf"{_FEATURE}(?:\|{_FEATURE})*")
_SAME_OF = re.compile(rf"\[({_FEATURE}(?:\|{_FEATURE})*)\]")
_ITEM = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_RANGES = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_MOST_HOSTS = 100_000
_MOST_RANGES, _MOST_CHARACTERS = 8, 255
# Reasons for which a job waits whatever GPUs and nodes it is given, in 22.05 to 26.05.
_BLOCKED = frozenset(
    {
        "AccountNotAllowed",
        "AssocGrpJobsLimit",
        "AssocGrpSubmitJobsLimit",
        "AssocGrpWallLimit",
        "AssocMaxJobsLimit",
        "AssocMaxSubmitJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "AssociationJobLimit",
        "AssociationTimeLimit",
        "BurstBufferOperation",
        "BurstBufferResources",
        "BurstBufferStageIn",
        "DeadLine",
        "Dependency",
        "DependencyNeverSatisfied",
        "FedJobLock",
        "InvalidAccount",
        "InvalidQOS",
        "JobArrayTaskLimit",
        "Licenses",
        "MaxJobsPerAccount",
        "MaxSubmitJobsPerAccount",
        "PartitionTimeLimit",
        "QOSGrpJobsLimit",
        "QOSGrpSubmitJobsLimit",
        "QOSGrpWallLimit",
        "QOSJobLimit",
        "QOSMaxJobsPerUserLimit",
        "QOSMaxSubmitJobPerUserLimit",
        "QOSMaxWallDurationPerJobLimit",
        "QOSNotAllowed",
        "QOSTimeLimit",
        "QOSUsageThreshold",
        "Reservation",
        "ReservationDeleted",
        "ReservationInvalid",
    }
)
# For a job of several partitions, these may concern only one of them.
CLOSED_PARTITION = frozenset({"PartitionDown", "PartitionInactive"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConstraints:
    """Where the job may run. `problem` is what of the owner's request cannot be checked node by node.

    With `one_node`, the request says something of several nodes together, and a single node satisfies it.
    """

    feature_sets: tuple[frozenset[str], ...]
    excluded: tuple[str, ...]
    required: tuple[str, ...]
    problem: str | None
    one_node: bool = False

    @classmethod
    def read(cls, fields: Fields) -> NodeConstraints:
        problem = None
        hosts: dict[str, tuple[str, ...]] = {}
        for key, option in (("excluded_nodes", "--exclude"), ("required_nodes", "--nodelist")):
            text = ",".join(fields.words(key))
            try:
                hosts[key] = expand_hosts(text)
            except ValueError:
                hosts[key] = ()
                problem = f"its {option}={text[:60]} cannot be understood"
        constraint = fields.text("features", "")
        try:
            features = feature_sets(constraint)
        except ValueError:
            features = ()
            problem = f"its --constraint={constraint[:60]} is more than features joined by & or by |"
        if fields.text("resv_name", ""):
            problem = "it runs in a reservation (--reservation)"
        return cls(
            feature_sets=features,
            excluded=hosts["excluded_nodes"],
            required=hosts["required_nodes"],
            problem=problem,
            one_node=fields.content.get("contiguous") is True
            or (constraint[:1] == "[" and len(features) > 1),
        )


def blocked_because(fields: Fields) -> str | None:
    """Return why Slurm does not start a waiting job whatever is free, None where it does."""
    reason = fields.text("state_reason", "")
    several = "," in fields.text("partition", "")
    if reason not in _BLOCKED and (several or reason not in CLOSED_PARTITION):
        return None
    return f"Slurm does not start it now, whatever is free ({reason})"


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list such as `n[0-3,7],m1`, in order. Raises `ValueError` for another form."""
    hosts: list[str] = []
    items = _ITEM.findall(text)
    if ",".join(items) != text.strip(","):
        raise ValueError(f"{text!r} is not a list of hosts")
    for item in items:
        names, parts = [""], _RANGES.split(item)
        if len(parts) // 2 > _MOST_RANGES or sum(map(len, parts[::2])) > _MOST_CHARACTERS:
            raise ValueError(f"{item[:60]!r} is too long for the names of hosts")
        for position, part in enumerate(parts):
            ends = [part] if position % 2 == 0 else _numbers(part)
            if len(names) * len(ends) > _MOST_HOSTS:
                raise ValueError(f"{text[:60]!r} has more than {_MOST_HOSTS} hosts")
            names = [name + end for name in names for end in ends]
        hosts.extend(names)
        if len(hosts) > _MOST_HOSTS:
            raise ValueError(f"{text[:60]!r} has more than {_MOST_HOSTS} hosts")
    return tuple(hosts)


def _numbers(ranges: str) -> list[str]:
    """Return the numbers of `0-3,7`, padded with zeros like the start of their range."""
    found: list[str] = []
    for one in ranges.split(","):
        match = _RANGE.fullmatch(one)
        if match is None:
            raise ValueError(f"{one!r} is not a range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < _MOST_HOSTS - len(found):
            raise ValueError(f"{one!r} is not a range of numbers, or one of too many")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


def feature_sets(constraint: str) -> tuple[frozenset[str], ...]:
    """Return sets of features, of which a node must have one completely; none for an empty constraint.

    A feature, `a&b` and `a|b` can be checked node by node; of `[a|b]`, all nodes must have the same one.
    Raises `ValueError` for everything else: counts of nodes (`a*2`), other brackets, parentheses, and `&` and
    `|` together.
    """
    if not constraint:
        return ()
    if (same := _SAME_OF.fullmatch(constraint)) is not None:
        constraint = same[1]
    if _ALL_OF.fullmatch(constraint):
        return (frozenset(constraint.split("&")),)
    if _ANY_OF.fullmatch(constraint):
        return tuple(frozenset({feature}) for feature in constraint.split("|"))
    raise ValueError(f"{constraint!r} is more than features joined by & or by |")
