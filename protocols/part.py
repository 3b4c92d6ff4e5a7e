"""A part of a batch, decoded once for all who read it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from protocols.clock import COUNT_BITS, Stamp
from protocols.delivery.messages import Batch, Origin
from protocols.delivery.needs import Sieved
from queries.expressions import EPOCH, MICROSECOND
from queries.schema import Row, Schema

PART_ROWS_MAX: Final = 2000  # A larger batch is fed in parts, so that results come in parts, too.


class Part(NamedTuple):
    """Consecutive tuples of one origin as rows, each with its time at the end."""

    origin: Origin
    first: int
    next: int
    published_at: Stamp
    rows: Sequence[Row]
    places: Sequence[int]  # Where each row stands. Some may be left out, as nobody here needs them.
    fit: Sequence[Row]  # Those without decimals that an earlier release accepted; nobody computes with these.
    latest_us: int  # The latest time of its tuples, those left out included.
    unfit: tuple[int, ...] = ()  # Of those left out: where nobody could compute with one.

    @property
    def is_whole(self) -> bool:
        return len(self.rows) == self.next - self.first

    @property
    def left_out(self) -> int:
        """How many tuples are not there, though somebody could compute with them."""
        return self.next - self.first - len(self.rows) - len(self.unfit)

    def since(self, place: int, schema: Schema) -> Part:
        """What it has from a place on."""
        if place <= self.first:
            return self
        rows = self.rows[bisect_left(self.places, place) :]
        if self.is_whole:
            return made(schema, self.origin, place, self.published_at, rows)
        return self._replace(
            first=place,
            rows=rows,
            places=self.places[bisect_left(self.places, place) :],
            fit=schema.held(rows),
            unfit=tuple(each for each in self.unfit if each >= place),
        )


def timed_rows(schema: Schema, event_time: str | None, batch: Batch) -> list[Row]:
    """The rows of a batch, each with its time."""
    rows = schema.decode(batch.rows) if batch.sieved is None else schema.decode_thinned(batch.rows)
    published = EPOCH + timedelta(milliseconds=batch.published_at >> COUNT_BITS)
    if event_time is None:
        return [(*row, published) for row in rows]
    place = next(i for i, field in enumerate(schema.fields) if field.name == event_time)
    return [(*row, row[place] if row[place] is not None else published) for row in rows]


def latest_of(schema: Schema, rows: Sequence[Row]) -> int:
    """The latest time of some rows."""
    time_at = len(schema.fields)
    latest: datetime = max(row[time_at] for row in rows)
    return (latest - EPOCH) // MICROSECOND


def made(schema: Schema, origin: Origin, first: int, published_at: Stamp, rows: Sequence[Row]) -> Part:
    """A part without a hole."""
    upto = first + len(rows)
    return Part(origin, first, upto, published_at, rows, range(first, upto), schema.held(rows), latest_of(schema, rows))


def parts_of(schema: Schema, event_time: str | None, batch: Batch) -> Iterator[Part]:
    """A batch in parts; raises MsgspecError if its rows are not of this schema."""
    rows = timed_rows(schema, event_time, batch)
    if batch.sieved is not None:
        yield _sieved(schema, batch, rows, batch.sieved)
        return
    for place in range(0, len(rows), PART_ROWS_MAX):
        some = rows[place : place + PART_ROWS_MAX]
        yield made(schema, batch.origin, batch.first + place, batch.published_at, some)


def _sieved(schema: Schema, batch: Batch, rows: Sequence[Row], sieved: Sieved) -> Part:
    """A batch that was sieved is one part: its sender has cut it."""
    places = [batch.first + number for number in sieved.numbers]
    unfit = tuple(batch.first + number for number in sieved.unfit)
    fit, latest_us = schema.held(rows), sieved.latest_us
    return Part(batch.origin, batch.first, batch.next, batch.published_at, rows, places, fit, latest_us, unfit)
