"""What a server leaves out of the batches that it sends, because their reader does not need it.

A batch is decoded once for all readers that see the stream in the same way and stand at its beginning, and their
selections are tested together. Tuples that a reader does not need are told as a span, together with those of later
batches: with the next tuple that it does need, or after a while. Nothing of this is on disk, and it is never owed: a
reader that gets a batch as it was published has got what it needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import msgspec

from protocols.delivery.messages import Batch, Origin
from protocols.delivery.needs import Needs, Sieved, skipped
from protocols.events import StoredBatch
from protocols.ids import Millis, SubscriptionId
from protocols.part import PART_ROWS_MAX, latest_of, timed_rows
from protocols.sieve import Sieve
from queries.layout import thinned
from queries.plan import Source
from queries.schema import Row, Schema

SPAN_MS: Final = 200  # A reader that goes by time hears at the latest after so long how far the stream is,
SLOW_SPAN_MS: Final = 1000  # and any other after so long.
SIFTED_BYTES_MAX: Final = 256 << 10  # In one event; the rest waits for the next one.
_NO_ROWS: Final = msgspec.msgpack.encode([])
_raw_rows: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


@dataclass(slots=True)
class Strainer:
    """What one reader is to get next: a span that it does not need, then sieved batches.

    Invariant: `span` and `ready` follow each other without a hole
    """

    needs: Needs
    sent: int = -1  # Up to where it has left here. If the reader stands elsewhere by now, sieving begins anew.
    span: Batch | None = None
    span_since: Millis = 0  # When the span began.
    ready: deque[Batch] = field(default_factory=deque)

    @property
    def at(self) -> int:
        """Up to where the stream was sieved for it."""
        if self.ready:
            return self.ready[-1].next
        return self.span.next if self.span is not None else self.sent

    def begin(self, sent: int) -> None:
        """Something was sent, or has to be sent again."""
        if sent != self.sent:
            self.sent, self.span = sent, None
            self.ready.clear()

    def get(self, pieces: Iterable[Batch]) -> None:
        """A batch was sieved for it."""
        at = self.at
        self.ready.extend(each for each in pieces if each.next > at)

    def next(self, now: Millis) -> list[Batch]:
        """What is to be sent of the next batch that is ready; it may only make the span longer."""
        batch = self.ready.popleft()
        if batch.sieved is not None and not batch.sieved.skipped:
            self.span_since = self.span_since if self.span is not None else now
            self.span = batch if self.span is None else _joined(self.span, batch)
            return []
        before = self.flushed()
        self.sent = batch.next
        return [*before, batch]

    def flushed(self) -> list[Batch]:
        """The span, to be sent now."""
        span, self.span = self.span, None
        if span is None:
            return []
        self.sent = span.next
        return [span]

    def is_due(self, now: Millis, *, is_timed: bool) -> bool:
        """Whether the reader has heard nothing for long enough."""
        return self.span is not None and now - self.span_since >= (SPAN_MS if is_timed else SLOW_SPAN_MS)


def _joined(span: Batch, batch: Batch) -> Batch:
    """Two spans that follow each other, as one."""
    assert span.sieved is not None
    assert batch.sieved is not None
    unfit = (*span.sieved.unfit, *(span.count + each for each in batch.sieved.unfit))
    latest_us = max(span.sieved.latest_us, batch.sieved.latest_us)
    sieved = Sieved(batch.sieved.by, (), latest_us, unfit)
    return Batch(span.origin, span.first, span.count + batch.count, batch.published_at, _NO_ROWS, sieved)


@dataclass(slots=True)
class _View:
    """Readers that see the rows of a stream in the same way."""

    source: Source
    sieve: Sieve[SubscriptionId] = field(init=False)
    whole: dict[SubscriptionId, None] = field(default_factory=dict)  # These need all tuples, but not all columns.
    readers: dict[SubscriptionId, Needs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sieve = Sieve(self.source)

    def add(self, reader: SubscriptionId, needs: Needs) -> None:
        self.readers[reader] = needs
        if () in needs.conjunctions:
            self.whole[reader] = None
        else:
            for parts in needs.conjunctions:
                self.sieve.add(reader, parts)

    def remove(self, reader: SubscriptionId) -> None:
        needs = self.readers.pop(reader)
        if reader in self.whole:
            del self.whole[reader]
        else:
            for parts in needs.conjunctions:
                self.sieve.remove(reader, parts)


@dataclass(slots=True)
class Sieving:
    """The readers of one feed that do not need all of it.

    Invariant: a reader gets every tuple that meets one of its conjunctions, with the columns that it needs
    """

    origin: Origin
    strainers: dict[SubscriptionId, Strainer] = field(default_factory=dict)
    budget: int = SIFTED_BYTES_MAX  # What is left of it in this event.
    saved_bytes: int = 0  # What was left out, so far.
    _views: dict[Source, _View] = field(default_factory=dict)

    def heed(self, reader: SubscriptionId, needs: Needs) -> None:
        """From now on a reader needs this."""
        self.drop(reader)
        if not needs.is_everything:
            self.strainers[reader] = Strainer(needs)
            self._views.setdefault(needs.source, _View(needs.source)).add(reader, needs)

    def drop(self, reader: SubscriptionId) -> None:
        """A reader is gone, or needs everything."""
        strainer = self.strainers.pop(reader, None)
        if strainer is not None:
            source = strainer.needs.source
            self._views[source].remove(reader)
            if not self._views[source].readers:
                del self._views[source]

    def sift(self, stored: StoredBatch | Batch, readers: Sequence[SubscriptionId]) -> None:
        """Get a batch ready for readers that all see it in the same way and stand in it."""
        self.budget -= len(stored.rows)
        first = self.strainers[readers[0]]
        view = self._views[first.needs.source]
        try:
            pieces = _pieces(self.origin, stored, view, readers)
        except msgspec.MsgspecError:  # It is the readers' matter what to make of it.
            pieces = {reader: [_whole(self.origin, stored)] for reader in readers}
        for reader in readers:
            self.strainers[reader].get(pieces[reader])
            self.saved_bytes += len(stored.rows) - sum(len(each.rows) for each in pieces[reader])

    def together(self, reader: SubscriptionId, at_same: Iterable[SubscriptionId]) -> list[SubscriptionId]:
        """Of readers at the same place, those that see the stream as this one does, itself among them."""
        source = self.strainers[reader].needs.source
        others = (each for each in at_same if each != reader and self.strainers[each].needs.source == source)
        return [reader, *others]

    def validate(self) -> None:
        for reader, strainer in self.strainers.items():
            assert reader in self._views[strainer.needs.source].readers
            chain = [*([strainer.span] if strainer.span is not None else []), *strainer.ready]
            assert all(one.next == other.first for one, other in pairwise(chain))
        assert sum(len(view.readers) for view in self._views.values()) == len(self.strainers)


def _whole(origin: Origin, stored: StoredBatch | Batch) -> Batch:
    if isinstance(stored, Batch):
        return stored
    return Batch(origin, stored.first, stored.count, stored.published_at, stored.rows)


def _pieces(
    origin: Origin, stored: StoredBatch | Batch, view: _View, readers: Sequence[SubscriptionId]
) -> dict[SubscriptionId, list[Batch]]:
    """For each reader, what it gets of a batch: a piece for each part in which it would read the batch."""
    schema, whole = view.source.schema, _whole(origin, stored)
    rows = timed_rows(schema, view.source.event_time, whole)
    found: dict[SubscriptionId, list[Batch]] = {reader: [] for reader in readers}
    if whole.sieved is not None:
        return {reader: [_again(whole, rows, view, reader)] for reader in readers}
    for begin in range(0, len(rows), PART_ROWS_MAX):
        some = rows[begin : begin + PART_ROWS_MAX]
        wanted, unfit = _wanted(schema, view, some, readers)
        latest_us = latest_of(schema, some)
        thin = _Thinning(stored.rows, begin, schema)
        for reader, numbers in wanted.items():
            needs = view.readers[reader]
            sieved = Sieved(needs.version, skipped(numbers), latest_us, unfit)
            kept = thin.encoded(tuple(numbers), needs.columns)
            found[reader].append(
                Batch(origin, stored.first + begin, len(some), stored.published_at, kept, sieved),
            )
    return found


def _again(batch: Batch, rows: Sequence[Row], view: _View, reader: SubscriptionId) -> Batch:
    """A batch that was sieved for us, sieved once more for a reader of ours."""
    schema, before, needs = view.source.schema, batch.sieved, view.readers[reader]
    assert before is not None
    wanted, unfit = _wanted(schema, view, rows, [reader])
    numbers = before.numbers
    left = skipped([numbers[row] for row in wanted[reader]])
    lost = tuple(sorted((*before.unfit, *(numbers[row] for row in unfit))))
    kept = _Thinning(batch.rows, 0, schema).encoded(tuple(wanted[reader]), needs.columns)
    sieved = Sieved(needs.version, left, before.latest_us, lost)
    return Batch(batch.origin, batch.first, batch.count, batch.published_at, kept, sieved)


def _wanted(
    schema: Schema, view: _View, some: Sequence[Row], readers: Sequence[SubscriptionId]
) -> tuple[dict[SubscriptionId, list[int]], tuple[int, ...]]:
    """Which of these rows each reader needs, by number; and those that nobody can compute with."""
    numbered = [(*row, number) for number, row in enumerate(some)]
    fit = schema.held(numbered)
    hits: dict[SubscriptionId, dict[int, None]] = {
        reader: dict.fromkeys(row[-1] for row in fit) if reader in view.whole else {} for reader in readers
    }
    for kept, of in view.sieve.sifted(fit, hits.__contains__):
        for reader in of:
            if reader in hits:
                hits[reader].update(dict.fromkeys(row[-1] for row in kept))
    there = {row[-1] for row in fit} if len(fit) < len(numbered) else None
    unfit = () if there is None else tuple(number for number in range(len(numbered)) if number not in there)
    return {reader: sorted(numbers) for reader, numbers in hits.items()}, unfit


@dataclass(slots=True)
class _Thinning:
    """The rows of a batch as they were written, of which readers get some: equal wishes are met once."""

    rows: bytes
    begin: int
    schema: Schema
    _raw: list[msgspec.Raw] = field(default_factory=list)
    _made: dict[tuple[tuple[int, ...], tuple[str, ...] | None], bytes] = field(default_factory=dict)

    def encoded(self, numbers: tuple[int, ...], columns: tuple[str, ...] | None) -> bytes:
        if not numbers:
            return _NO_ROWS
        wish = numbers, columns
        if wish not in self._made:
            self._raw = self._raw or _raw_rows.decode(self.rows)
            rows = [self._raw[self.begin + number] for number in numbers]
            kept = self.schema.kept_places(columns) if columns is not None else None
            self._made[wish] = msgspec.msgpack.encode(rows if kept is None else [thinned(row, kept) for row in rows])
        return self._made[wish]
