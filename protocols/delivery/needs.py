"""What a reader needs of a stream, and what a batch says of the tuples that were left out because of that.

reader ── SUBSCRIBE with needs, version 3 ──▶ server ── BATCH, sieved by 3 ──▶ reader

A server need not heed needs: whoever sends all tuples with all columns does nothing wrong. Who leaves something out
says by which version of the needs, so that the reader knows who of its own readers can use the batch (decision 54).
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from typing import Final

import msgspec

from protocols.errors import expect
from protocols.ids import Count, Micros
from queries.expressions import Expression, conjunction
from queries.plan import Select, Source
from queries.schema import Schema
from queries.sound import UnsoundPlan, check_plan

CONJUNCTIONS_MAX: Final = 64  # Of one reader; one that needs more gets all tuples.
EVERYBODY: Final = ""  # The alias that a stream has in the selections of all its readers.
ALL_TUPLES: Final[tuple[tuple[Expression, ...], ...]] = ((),)  # Whoever asks nothing of a tuple needs every one.
EARLIEST_US: Final = -62_135_596_800_000_000  # The years 1 to 9999, from the epoch on.
LATEST_US: Final = 253_402_300_799_999_999


class Needs(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Which tuples of a stream a reader needs, and which of their columns."""

    version: Count  # Each change has a higher one.
    schema: Schema  # As the reader sees the stream. Rows of other versions of the stream are read with it, too.
    event_time: str | None
    columns: tuple[str, ...] | None = None  # None: all.
    conjunctions: tuple[tuple[Expression, ...], ...] = ALL_TUPLES  # A tuple that meets none of them is not needed.

    @property
    def is_everything(self) -> bool:
        return self.columns is None and () in self.conjunctions

    def is_like(self, other: Needs) -> bool:
        """Whether both are the same but for their versions."""
        one, two = (dict.fromkeys(each.conjunctions) for each in (self, other))
        return (self.schema, self.event_time, self.columns, one) == (other.schema, other.event_time, other.columns, two)

    @cached_property
    def source(self) -> Source:
        """The stream as the conjunctions see it. Its name does not matter."""
        return Source("", EVERYBODY, self.schema, None, self.event_time)

    def check(self) -> None:
        """See Message.check."""
        expect(len(self.conjunctions) <= CONJUNCTIONS_MAX, f"more than {CONJUNCTIONS_MAX} conjunctions")
        names = [each.name for each in self.schema.fields]
        expect(all(each in names for each in self.columns or ()), "needs a column that is not there")
        is_timed = self.event_time is None or self.columns is None or self.event_time in self.columns
        expect(is_timed, "needs no event time")
        try:
            for parts in self.conjunctions:
                predicate = conjunction(parts)
                check_plan(self.source if predicate is None else Select(self.source, predicate))
        except UnsoundPlan as error:
            expect(False, f"needs that make no sense: {error}")


class Sieved(msgspec.Struct, frozen=True, array_like=True):
    """What was left out of a batch, because its reader does not need it."""

    by: Count  # The version of the reader's needs.
    skipped: tuple[Count, ...]  # How many tuples are left out before each one that is there.
    latest_us: Micros  # The latest time of all tuples, those left out included.
    unfit: tuple[Count, ...] = ()  # Of those left out, by number within the batch: nobody can compute with these.

    @property
    def numbers(self) -> list[int]:
        """Which tuples of the batch are there."""
        return [before + number for number, before in enumerate(accumulate(self.skipped))]

    def since(self, number: int) -> Sieved:
        """Of the tuples from this one on; they are counted from there."""
        left = [each - number for each in self.numbers if each >= number]
        unfit = tuple(each - number for each in self.unfit if each >= number)
        return Sieved(self.by, skipped(left), self.latest_us, unfit)

    def check(self, count: int, rows: int) -> None:
        """What holds of a batch of so many tuples with so many rows."""
        expect(rows == len(self.skipped), "a batch whose rows are not as many as it says, or cannot be read")
        expect(sum(self.skipped) + rows <= count, "a batch that leaves out more tuples than it has")
        expect(all(each < count for each in self.unfit), "tuples without a meaning that are in another batch")
        expect(EARLIEST_US <= self.latest_us <= LATEST_US, "a time beyond all years")


def skipped(numbers: list[int]) -> tuple[int, ...]:
    """How many are left out before each of these; they are in order.

    >>> skipped([0, 1, 4])
    (0, 0, 2)
    """
    return tuple(number - before - 1 for before, number in zip([-1, *numbers], numbers, strict=False))
