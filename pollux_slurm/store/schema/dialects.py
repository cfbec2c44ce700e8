"""SQL texts of `sql/` for each database: plain SQL but for a few marks that the two spell differently.

| mark | is |
|---|---|
| `seconds(a, b)` | the seconds from moment a to moment b, to a thousandth |
| `days_ago(n)` | the day n days before today, in UTC |
| `day(a)`, `day_before(a)` | the day of a moment in UTC, the day before it |
| `next_day(d)`, `midnight(d)` | the day after day d, the moment when it begins |
| `least(a, b)`, `greatest(a, b)` | the smaller, the larger of two values, neither of them null |
| `listed(a)` | an aggregate: texts with a + between them |
| `ratio(a, b)` | a / b, null where b is not above 0 |
| `total(a)` | the sum of whole numbers; 0 or null of none |
| `tamed(table, ...)` | a table, or columns of it, in numbers that no arithmetic of a few puts out of range |
| `no` | false |
| `looked_up(name, source)` | what is looked up beside a row: `.of(a)` is a column, `.join` goes below FROM |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy import BigInteger, Double

from pollux_slurm.resources import resource_dir

Mark = Callable[..., str] | str


def _ratio(part: str, whole: str) -> str:
    return f"(CASE WHEN {whole} > 0.0 THEN {part} / {whole} END)"


def _tamed(name: str, *only: str) -> str:
    """Return a subquery for a table, or for some of its columns.

    A product or quotient of a few numbers from it is in a double's range.
    """
    from pollux_slurm.store.schema import Base

    columns = []
    for column in Base.metadata.tables[name].columns:
        if only and column.name not in only:
            continue
        place = f"t.{column.name}"
        if isinstance(column.type, Double):
            place = (
                f"CASE WHEN abs({place}) < 1e-30 THEN 0.0 WHEN {place} > 1e30 THEN 1e30"
                f" WHEN {place} < -1e30 THEN -1e30 ELSE {place} END AS {column.name}"
            )
        elif isinstance(column.type, BigInteger) and not column.primary_key and not column.foreign_keys:
            place = f"LEAST({place}, 1000000000000) AS {column.name}"
        columns.append(place)
    return f"(SELECT {', '.join(columns)} FROM {name} AS t)"


_SQLITE: dict[str, Mark] = {
    # julianday() is some 40 microseconds off: it gives the whole seconds, and the six digits that follow them
    # in a moment's text, where there are any, the rest.
    "seconds": lambda start, end: (
        f"(ROUND((ROUND((julianday(substr({end}, 1, 19)) - julianday(substr({start}, 1, 19))) * 86400.0)"
        f" * 1000000 + substr({end}, 21, 6) - substr({start}, 21, 6)) / 1000.0) / 1000.0)"
    ),
    "days_ago": lambda days: f"date('now', '-{days} day')",
    "day": lambda moment: f"date({moment})",
    "day_before": lambda moment: f"date({moment}, '-1 day')",
    "next_day": lambda day: f"date({day}, '+1 day')",
    # As text, like every moment: it is compared with others letter by letter.
    "midnight": lambda day: f"({day} || ' 00:00:00.000000')",
    "least": lambda one, other: f"MIN({one}, {other})",
    "greatest": lambda one, other: f"MAX({one}, {other})",
    "listed": lambda text: f"group_concat({text}, '+')",
    "ratio": _ratio,
    "total": lambda number: f"TOTAL({number})",
    "tamed": lambda table, *_only: table,
    "no": "0",
}
_POSTGRESQL: dict[str, Mark] = {
    "seconds": lambda start, end: (
        f"(round((extract(epoch FROM ({end}) - ({start})))::numeric, 3)::double precision)"
    ),
    "days_ago": lambda days: f"((CURRENT_TIMESTAMP AT TIME ZONE 'UTC')::date - {days})",
    "day": lambda moment: f"(({moment}) AT TIME ZONE 'UTC')::date",
    "day_before": lambda moment: f"((({moment}) AT TIME ZONE 'UTC')::date - 1)",
    "next_day": lambda day: f"(({day}) + 1)",
    "midnight": lambda day: f"(({day})::timestamp AT TIME ZONE 'UTC')",
    "least": lambda one, other: f"LEAST({one}, {other})",
    "greatest": lambda one, other: f"GREATEST({one}, {other})",
    "listed": lambda text: f"string_agg({text}, '+')",
    "ratio": _ratio,
    "total": lambda number: f"SUM({number})",
    "tamed": _tamed,
    "no": "false",
}
_MARKS = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL}


class LookedUp:
    """Columns that are looked up in `source` (FROM ... WHERE ...) for each row of a view.

    PostgreSQL joins them all at once, and then looks once a row; SQLite, which cannot join so, asks for each
    by itself, and only for those that are wanted.
    """

    def __init__(self, dialect: str, name: str, source: str) -> None:
        self._name, self._source = name, source
        self._laterally = dialect == "postgresql"
        self._columns: list[str] = []

    def of(self, expression: str) -> str:
        """Return the text for one column."""
        if not self._laterally:
            return f"(SELECT {expression} {self._source})"
        if expression not in self._columns:
            self._columns.append(expression)
        return f"{self._name}.c{self._columns.index(expression)}"

    @property
    def join(self) -> str:
        """Return what goes below FROM, after all columns were asked for."""
        if not self._laterally:
            return ""
        columns = ", ".join(f"{expression} AS c{number}" for number, expression in enumerate(self._columns))
        return f"LEFT JOIN LATERAL (SELECT {columns}\n        {self._source}) AS {self._name} ON true\n"


def rendered_sql(path: str, dialect: str, **values: Any) -> str:
    """Return the text of a file in `sql/` for `sqlite` or `postgresql`, without a semicolon at its end."""
    environment = Environment(
        loader=FileSystemLoader(resource_dir("sql")),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(_MARKS[dialect])
    environment.globals["looked_up"] = lambda name, source: LookedUp(dialect, name, source)
    return environment.get_template(path).render(**values).strip().rstrip(";")
