"""The SQL texts of `sql/` for each database: plain SQL with Jinja macros for what the two spell differently.

| macro | is |
|---|---|
| `seconds(a, b)` | the seconds from time a to time b, to a thousandth |
| `days_ago(n)` | the day n days before today, in UTC |
| `day(a)`, `day_before(a)` | the day of a time in UTC, the day before it |
| `next_day(d)`, `midnight(d)` | the day after day d, the time at which it begins |
| `least(a, b)`, `greatest(a, b)` | the smaller, the larger of two values, neither of them null |
| `joined(a)` | an aggregate: texts with a + between them |
| `not_negative(a)` | a, 0 where it is negative, null where it is null |
| `ratio(a, b)` | a / b, null where b is not above 0 |
| `total(a)` | the sum of whole numbers; 0 or null of none |
| `clamped(table, ...)` | a table, or columns of it, with numbers whose products cannot overflow |
| `sql_false` | false |
| `same(a, b)` | whether two values are equal, or both are null |
| `json_length(a)` | the length of a JSON array |
| `json_elements(a)` | its elements as rows: `place` from 0, `value` |
| `lock_rows(table)` | at the end of a SELECT: keep others from changing the rows that it finds |
| `lookup(name, source)` | columns looked up for each row: `.column(a)` is one, `.join` goes below FROM |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy import BigInteger, Double

from pollux_slurm.resources import resource_dir

Macro = Callable[..., str] | str


def _clamped(name: str, *only: str) -> str:
    """Return a subquery for a table, or for some of its columns, with clamped numbers.

    A product or quotient of a few of them is within a double's range.
    """
    from pollux_slurm.store.schema import Base

    columns = []
    for column in Base.metadata.tables[name].columns:
        if only and column.name not in only:
            continue
        number = f"t.{column.name}"
        if isinstance(column.type, Double):
            number = (
                f"CASE WHEN abs({number}) < 1e-30 THEN 0.0 WHEN {number} > 1e30 THEN 1e30"
                f" WHEN {number} < -1e30 THEN -1e30 ELSE {number} END AS {column.name}"
            )
        elif isinstance(column.type, BigInteger) and not column.primary_key and not column.foreign_keys:
            number = f"LEAST({number}, 1000000000000) AS {column.name}"
        columns.append(number)
    return f"(SELECT {', '.join(columns)} FROM {name} AS t)"


# SQLite looks a value up again wherever a view writes it: these write it as rarely as can be.
_SQLITE: dict[str, Macro] = {
    # julianday() is off by some 40 microseconds. So only the whole seconds come from it; the fraction comes
    # from the six digits behind them in the text.
    "seconds": lambda start, end: (
        f"(ROUND((ROUND((julianday(substr({end}, 1, 19)) - julianday(substr({start}, 1, 19))) * 86400.0)"
        f" * 1000000 + substr({end}, 21, 6) - substr({start}, 21, 6)) / 1000.0) / 1000.0)"
    ),
    "days_ago": lambda days: f"date('now', '-{days} day')",
    "day": lambda at: f"date({at})",
    "day_before": lambda at: f"date({at}, '-1 day')",
    "next_day": lambda day: f"date({day}, '+1 day')",
    # As text, like every time in SQLite: times are compared as texts.
    "midnight": lambda day: f"({day} || ' 00:00:00.000000')",
    "least": lambda one, other: f"MIN({one}, {other})",
    "greatest": lambda one, other: f"MAX({one}, {other})",
    "joined": lambda text: f"group_concat({text}, '+')",
    "not_negative": lambda number: f"MAX(0.0, {number})",
    "ratio": lambda part, whole: f"({part} / NULLIF(MAX({whole}, 0.0), 0.0))",
    "total": lambda number: f"TOTAL({number})",
    "clamped": lambda table, *_only: table,
    "sql_false": "0",
    "same": lambda one, other: f"{one} IS {other}",
    "json_length": lambda array: f"json_array_length({array})",
    "json_elements": lambda array: f"(SELECT j.key AS place, j.value FROM json_each({array}) AS j)",
    # A transaction that writes has the whole database to itself.
    "lock_rows": lambda _table: "",
}
_POSTGRESQL: dict[str, Macro] = {
    "seconds": lambda start, end: (
        f"(round((extract(epoch FROM ({end}) - ({start})))::numeric, 3)::double precision)"
    ),
    "days_ago": lambda days: f"((CURRENT_TIMESTAMP AT TIME ZONE 'UTC')::date - {days})",
    "day": lambda at: f"(({at}) AT TIME ZONE 'UTC')::date",
    "day_before": lambda at: f"((({at}) AT TIME ZONE 'UTC')::date - 1)",
    "next_day": lambda day: f"(({day}) + 1)",
    "midnight": lambda day: f"(({day})::timestamp AT TIME ZONE 'UTC')",
    "least": lambda one, other: f"LEAST({one}, {other})",
    "greatest": lambda one, other: f"GREATEST({one}, {other})",
    "joined": lambda text: f"string_agg({text}, '+')",
    "not_negative": lambda number: f"CASE WHEN {number} < 0.0 THEN 0.0 ELSE {number} END",
    "ratio": lambda part, whole: f"(CASE WHEN {whole} > 0.0 THEN {part} / {whole} END)",
    "total": lambda number: f"SUM({number})",
    "clamped": _clamped,
    "sql_false": "false",
    "same": lambda one, other: f"{one} IS NOT DISTINCT FROM {other}",
    "json_length": lambda array: f"jsonb_array_length({array})",
    "json_elements": lambda array: (
        "(SELECT j.number - 1 AS place, j.value"
        f" FROM jsonb_array_elements_text({array}) WITH ORDINALITY AS j (value, number))"
    ),
    "lock_rows": lambda table: f"FOR NO KEY UPDATE OF {table}",
}
_MACROS = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL}


class Lookup:
    """Columns that are looked up in `source` (FROM ... WHERE ...) for each row of a view.

    PostgreSQL looks them all up in one lateral join. SQLite has no lateral joins: each column is a scalar
    subquery, evaluated only where the query uses it.
    """

    def __init__(self, dialect: str, name: str, source: str) -> None:
        self._name, self._source = name, source
        self._laterally = dialect == "postgresql"
        self._columns: list[str] = []

    def column(self, expression: str) -> str:
        """Return the SQL of one column."""
        if not self._laterally:
            return f"(SELECT {expression} {self._source})"
        if expression not in self._columns:
            self._columns.append(expression)
        return f"{self._name}.c{self._columns.index(expression)}"

    @property
    def join(self) -> str:
        """Return the join to place below FROM, once `column` was called for every column."""
        if not self._laterally:
            return ""
        columns = ", ".join(f"{expression} AS c{number}" for number, expression in enumerate(self._columns))
        return f"LEFT JOIN LATERAL (SELECT {columns}\n        {self._source}) AS {self._name} ON true\n"


def rendered_sql(path: str, dialect: str, **values: Any) -> str:
    """Return the text of a file in `sql/` for `sqlite` or `postgresql`, without a final semicolon."""
    environment = Environment(
        loader=FileSystemLoader(resource_dir("sql")),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(_MACROS[dialect])
    environment.globals["lookup"] = lambda name, source: Lookup(dialect, name, source)
    return environment.get_template(path).render(**values).strip().rstrip(";")
