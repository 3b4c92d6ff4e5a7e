"""A small join that a warm Spark runs before anybody needs one.

Java loads and compiles code when it first runs, so the first join of a session takes many times as long as the second.
A warm Spark has that behind it when a query comes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from queries.plan import Operator
from queries.schema import Row

RUN: Final = "rehearsal"
_TEXT: Final = "SELECT a.k FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE a.k = b.k AND a.word <= b.word"
_AT: Final = datetime(2000, 1, 1, tzinfo=UTC)
_WATERMARK_US: Final = int(_AT.timestamp() * 1_000_000)

Fed = tuple[int, str, list[Row], bool, int | None, int | None]
INPUTS: Final[tuple[Fed, ...]] = tuple(
    (number, alias, [(number, alias, _AT, _AT)], True, _WATERMARK_US, _WATERMARK_US)
    for number, alias in enumerate("abab", start=1)
)
"""What is fed, in order, and in the words of the engine."""


def rehearsed() -> Operator:
    """The plan."""
    from queries.catalogue import Stream
    from queries.schema import Schema
    from queries.sql import plan

    schema = Schema.parse("k int, word string, at timestamp")
    return plan(_TEXT, {name: Stream(name, schema, "at") for name in ("a", "b")}).plan
