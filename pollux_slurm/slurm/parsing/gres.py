"""Parse Slurm's generic resources (GRES), in the forms of 22.05 to 26.05. No other module splits them.

configured, used    gpu:t4:4    gpu:4(S:0-1)    gpu:t4:4(IDX:0-1,3)    gpu:(null):2(IDX:0-1)
                    nsight:no_consume:1    bandwidth:lustre:no_consume:4G    mps:t4:50(50/100,0/100)
requested           gres:gpu:t4:5 (22.05)    gres/gpu:t4:5 (newer)    gres/gpu:t4=5    gres:gpu
accounted           billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_GPU = "gpu"
_NOT_CONSUMED = "no_consume"
_NOTHING = ("", "(null)", "N/A", "none")
_DETAIL = re.compile(r"\((?!null\))[^()]*\)")
_COUNT = re.compile(r"([0-9]{1,15})([KMGT]?)", re.IGNORECASE)
_ACCOUNTED = re.compile(r"(?:^|,)gres/gpu(:[^=,]+)?=([0-9]{1,9})(?=,|$)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gres:
    """A count of one generic resource. `type` is None where the text names none."""

    name: str
    type: str | None
    count: int


def parse_gres(text: str | None) -> tuple[Gres, ...]:
    """Parse a list of resources. Raises `ValueError` for GPUs of another form.

    Only of GPUs the number is needed: any other resource of a form that is not known counts as one.
    """
    if text is None or text.strip() in _NOTHING:
        return ()
    plain = _DETAIL.sub("", text).replace(":(null)", "")
    return tuple(_parse_one(item.strip()) for item in plain.split(","))


def _parse_one(item: str) -> Gres:
    name, *rest = item.removeprefix("gres:").removeprefix("gres/").replace("=", ":").split(":")
    rest = [part for part in rest if part != _NOT_CONSUMED]
    match = _COUNT.fullmatch(rest[-1]) if rest else None
    if match is not None:
        rest.pop()
    if not name or len(rest) > 1 or not all(rest):
        if name not in ("", _GPU):
            return Gres(name=name, type=None, count=1)
        raise ValueError(f"{item!r} is not a generic resource")
    count = int(match[1]) * _UNITS[match[2].upper()] if match is not None else 1
    return Gres(name=name, type=rest[0] if rest else None, count=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCount:
    """The GPUs among some resources. `types` are the types named; `others` names the other resources."""

    count: int
    types: frozenset[str]
    others: frozenset[str]

    @property
    def type(self) -> str | None:
        """The one type that is named, None if none or several are."""
        return next(iter(self.types)) if len(self.types) == 1 else None


def count_gpus(items: Iterable[Gres]) -> GpuCount:
    """Add up the GPUs.

    A text may name the same GPUs with and without a type (`gres/gpu:2,gres/gpu:t4:2`), so the larger of the
    two sums counts.
    """
    items = tuple(items)
    gpus = [item for item in items if item.name == _GPU]
    typed = sum(item.count for item in gpus if item.type is not None)
    untyped = sum(item.count for item in gpus if item.type is None)
    return GpuCount(
        count=max(typed, untyped),
        types=frozenset(item.type for item in gpus if item.type is not None),
        others=frozenset(item.name for item in items if item.name != _GPU and item.count),
    )


def accounted_gpus(tres: str) -> int | None:
    """Return the GPUs in a run's TRES; None where it names none.

    A site may account for all GPUs (`gres/gpu`), each type (`gres/gpu:a100`), or both.
    """
    counts = _ACCOUNTED.findall(tres)
    total = [int(count) for kind, count in counts if not kind]
    if total:
        return total[0]
    return sum(int(count) for _, count in counts) if counts else None
