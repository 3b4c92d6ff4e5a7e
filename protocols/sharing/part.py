"""A part of a batch, decoded once for all who read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from protocols.clock import COUNT_BITS, Stamp
from protocols.delivery.messages import Batch, Origin
from queries.expressions import EPOCH, MICROSECOND
from queries.schema import Row, Schema

PART_ROWS_MAX: Final = 2000  # A larger batch is fed in parts, so that results come in parts, too.


class Part(NamedTuple):
    """Consecutive tuples of one origin as rows, each with its time at the end."""

    origin: Origin
    first: int
    published_at: Stamp
    rows: Sequence[Row]
    fit: Sequence[Row]  # Those without decimals that an earlier release accepted; nobody computes with these.
    latest_us: int  # The latest time of its rows.

    @property
    def next(self) -> int:
        return self.first + len(self.rows)

    def since(self, place: int, schema: Schema) -> Part:
        """What it has from a place on."""
        if place <= self.first:
            return self
        return made(schema, self.origin, place, self.published_at, self.rows[place - self.first :])


def timed_rows(schema: Schema, event_time: str | None, batch: Batch) -> list[Row]:
    """The rows of a batch, each with its time."""
    rows = schema.decode(batch.rows)
    published = EPOCH + timedelta(milliseconds=batch.published_at >> COUNT_BITS)
    if event_time is None:
        return [(*row, published) for row in rows]
    place = next(i for i, field in enumerate(schema.fields) if field.name == event_time)
    return [(*row, row[place] if row[place] is not None else published) for row in rows]


def made(schema: Schema, origin: Origin, first: int, published_at: Stamp, rows: Sequence[Row]) -> Part:
    time_at = len(schema.fields)
    latest_us = (max(row[time_at] for row in rows) - EPOCH) // MICROSECOND
    return Part(origin, first, published_at, rows, schema.held(rows), latest_us)


def parts_of(schema: Schema, event_time: str | None, batch: Batch) -> Iterator[Part]:
    """A batch in parts; raises MsgspecError if its rows are not of this schema."""
    rows = timed_rows(schema, event_time, batch)
    for place in range(0, len(rows), PART_ROWS_MAX):
        some = rows[place : place + PART_ROWS_MAX]
        yield made(schema, batch.origin, batch.first + place, batch.published_at, some)
