"""The streams a query may name: what both languages need to know of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from queries.plan import Source, Window
from queries.schema import Schema

DAY_MS: Final = 24 * 3600 * 1000


class Stream(msgspec.Struct, frozen=True):
    """One stream: its name, its fields, where its time comes from and how long its tuples are kept."""

    name: str
    schema: Schema
    event_time: str | None = None
    lateness_ms: int = 0
    retention_ms: int = DAY_MS

    def source(self, alias: str, window: Window | None = None) -> Source:
        return Source(self.name, alias, self.schema, window, self.event_time, self.lateness_ms)


Streams = Mapping[str, Stream]


def named(name: str, known: Iterable[str]) -> str | None:
    """The known name that a text means: the same name, or the only one that differs just in case.

    >>> named("FLIGHTS", ["flights", "sales"]), named("a", ["A", "a"]), named("X", ["x-y"])
    ('flights', 'a', None)
    """
    names = list(known)
    if name in names:
        return name
    folded = [each for each in names if each.lower() == name.lower()]
    return folded[0] if len(folded) == 1 else None
