"""Random rows of any schema, for Hypothesis."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from queries.schema import Field

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False),
    "decimal": st.decimals(-(10**19), 10**19, places=4),
    "string": st.text(max_size=8),
    "bool": st.booleans(),
    "timestamp": st.datetimes(
        datetime(1970, 1, 2),  # noqa: DTZ001 - the strategy adds the zone
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=-3))]),
    ),
    "bytes": st.binary(max_size=8),
}


def value_of(field: Field) -> st.SearchStrategy[Any]:
    value = row_of(field.fields) if field.type == "record" else VALUES[field.type]
    return st.none() | value if field.nullable else value


def row_of(fields: tuple[Field, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*map(value_of, fields))
