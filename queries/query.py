"""A continuous query: its text, its plan, the class it belongs to, and how it wants to be run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from queries.catalogue import Streams
from queries.plan import Operator

Language = Literal["sql", "wxquery"]
# CQ-DHT, section 2, has T1 and T2: two-way joins on an equality, which the DHT's index can evaluate; theta has none.
QueryClass = Literal["select", "T1", "T2", "theta", "windowed", "multi-way", "aggregate", "nested"]


class Query(msgspec.Struct, frozen=True):
    """What a text means, given the streams it names."""

    text: str
    language: Language
    plan: Operator
    query_class: QueryClass
    options: tuple[tuple[str, str], ...] = ()  # What WITH (key = value) asked for.


def parse(text: str, streams: Streams, parameters: Sequence[Any] = ()) -> Query:
    """The query of a text in either language; raises QueryError. `parameters` fill the question marks of SQL."""
    if _WXQUERY.match(text):
        from queries import wxquery

        return wxquery.plan(text, streams)
    from queries import sql

    return sql.plan(text, streams, parameters)


_WXQUERY = re.compile(r"\s*(<|\{|\(:|(for|let|if|stream)\b)|\s*\((?![\s(]*select\b)", re.IGNORECASE)
