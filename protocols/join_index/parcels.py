"""Parcels under way to evaluators: what goes into each, and which are sent again for want of a receipt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.effects import Effect, Send
from protocols.ids import Millis, PeerId
from protocols.join_index.heavy import Spread
from protocols.join_index.messages import JoinQuery, Load, Parcel
from protocols.join_index.reader import Dispatch, Reader

RESEND_MS: Final = 2000  # A parcel without a receipt is sent again after this time.
PARCEL_BYTES: Final = 256 << 10


@dataclass(slots=True, eq=False)
class Carried:
    """A parcel without a receipt."""

    reader: Reader
    dispatch: Dispatch
    parcel: Parcel
    to: PeerId
    sent_at: Millis


@dataclass(slots=True)
class Parcels:
    """The parcels of a rewriter.

    Keeps:     parcels without a receipt
    Invariant: numbers rise, also from one life of the peer to the next; a parcel names the last earlier one with
               queries, which the evaluator must unpack first
    """

    _last_number: int = 0
    _carried: dict[int, Carried] = field(default_factory=dict)
    _on_the_way: dict[PeerId, dict[int, None]] = field(default_factory=dict)  # Their numbers, by evaluator.
    _with_queries: dict[PeerId, dict[int, None]] = field(default_factory=dict)  # Those that carry queries.

    def begin(self, now: Millis) -> None:
        """Begin a life: number parcels from above all numbers that an earlier life has used."""
        self._last_number = now << 20

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def carry(self, reader: Reader, dispatch: Dispatch, loads: Iterable[Load], now: Millis) -> list[Send]:
        """One parcel for each evaluator, or several where one would be too large. New queries go first."""
        by_peer: dict[PeerId, list[Load]] = {}
        for load in loads:
            for peer, share in _by_evaluator(reader.spread, load):
                reader.messages += len(share.sequences)
                by_peer.setdefault(peer, []).append(share)
        sent: list[Send] = []
        for to, every in by_peer.items():
            for queries, some in _portions(reader.unknown_to(to), every):
                number, on_the_way = self.next_number(), self._on_the_way.setdefault(to, {})
                parcel = Parcel(
                    number=number,
                    loads=some,
                    queries=queries,
                    counts_on=True,
                    after=self._queries_before(to, number),
                    settled=next(iter(on_the_way), number),
                )
                on_the_way[number] = None
                if queries:
                    self._with_queries.setdefault(to, {})[number] = None
                dispatch.parcels += 1
                self._carried[number] = Carried(reader, dispatch, parcel, to, now)
                sent.append(Send(to, parcel))
        return sent

    def _queries_before(self, to: PeerId, number: int) -> int:
        """The last earlier parcel to an evaluator that carries queries and has no receipt; 0: there is none."""
        return next((each for each in reversed(self._with_queries.get(to, {})) if each < number), 0)

    def is_to(self, peer: PeerId, number: int) -> bool:
        """Whether a parcel went to a peer, as far as is known."""
        carried = self._carried.get(number)
        return carried is None or carried.to == peer

    def take(self, number: int) -> Carried | None:
        """Remove a parcel that has a receipt; None: it is no longer here."""
        carried = self._carried.pop(number, None)
        if carried is not None:
            del self._on_the_way[carried.to][number]
            self._with_queries.get(carried.to, {}).pop(number, None)
        return carried

    def drop(self, reader: Reader) -> None:
        """Forget the parcels of a reader that is closed."""
        for number in [number for number, each in self._carried.items() if each.reader is reader]:
            self.take(number)

    def again(self, now: Millis) -> list[Effect]:
        """The parcels that have been without a receipt for a while."""
        effects: list[Effect] = []
        for carried in self._carried.values():
            if now - carried.sent_at >= RESEND_MS:
                carried.sent_at = now
                if carried.parcel.after not in self._on_the_way[carried.to]:  # It is unpacked, or dropped.
                    before = self._queries_before(carried.to, carried.parcel.number)
                    carried.parcel = msgspec.structs.replace(carried.parcel, after=before)
                effects.append(Send(carried.to, carried.parcel))
        return effects

    def waiting(self) -> dict[PeerId, list[Reader]]:
        """The evaluators that have not acknowledged all parcels, and the readers of these parcels."""
        found: dict[PeerId, list[Reader]] = {}
        for carried in self._carried.values():
            found.setdefault(carried.to, []).append(carried.reader)
        return found

    def is_empty(self) -> bool:
        return not self._carried

    def validate(self, readers: Iterable[str]) -> None:
        there = dict.fromkeys(readers)
        for carried in self._carried.values():
            assert carried.reader.name in there
            assert carried.dispatch.parcels > 0


def _by_evaluator(spread: Spread, load: Load) -> Iterator[tuple[PeerId, Load]]:
    """A load taken apart by the evaluators of its values."""
    raw: list[msgspec.Raw] = []
    for peer, numbers in spread.shares(load).items():
        if len(numbers) == len(load.values):
            yield peer, load
            continue
        raw = raw or msgspec.msgpack.decode(load.rows, type=list[msgspec.Raw])
        yield (
            peer,
            msgspec.structs.replace(
                load,
                sequences=tuple([load.sequences[number] for number in numbers]),
                values=tuple([load.values[number] for number in numbers]),
                rows=msgspec.msgpack.encode([raw[number] for number in numbers]),
            ),
        )


def _portions(queries: list[JoinQuery], loads: list[Load]) -> Iterator[tuple[tuple[JoinQuery, ...], tuple[Load, ...]]]:
    """What goes into each parcel so that none is too large. Queries come before loads."""
    some: list[JoinQuery] = []
    portion: list[Load] = []
    size = 0
    every: tuple[JoinQuery | Load, ...] = (*queries, *loads)
    for each in every:
        if size >= PARCEL_BYTES:
            yield tuple(some), tuple(portion)
            some, portion, size = [], [], 0
        if isinstance(each, Load):
            portion.append(each)
            size += len(each.rows) + 40 * len(each.values) + 200
        else:
            some.append(each)
            size += 1000
    yield tuple(some), tuple(portion)
