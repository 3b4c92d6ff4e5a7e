"""The coordinator of a key: asks its owners on behalf of a writer or a reader, and answers once enough have answered.

It keeps nothing that matters: whoever asked repeats the question until there is an answer, perhaps at another
coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from protocols.clock import Stamp
from protocols.effects import Effect, Send, Tell
from protocols.events import Received
from protocols.ids import Key, Millis, PeerId
from protocols.messages import Message
from protocols.store.entries import Entry, Order
from protocols.store.limits import CLOSER_MAX
from protocols.store.messages import (
    ItemName,
    StoreAck,
    StoreEntries,
    StoreFetch,
    StoreFound,
    StoreGet,
    StorePut,
    StorePutDone,
    StoreReplicate,
)
from protocols.store.neighbourhood import Neighbourhood

Question = TypeVar("Question")
Open = TypeVar("Open", "_Writing", "_Reading")


@dataclass(slots=True)
class _Writing:
    """One entry on its way to its owners. Several writers may wait, each for its own version or a newer one."""

    entry: Entry
    opened_at: Millis
    waiting: dict[tuple[Stamp, PeerId], None] = field(default_factory=dict)  # Stamps and writers.
    asked: dict[PeerId, Order] = field(default_factory=dict)
    held: dict[PeerId, Order] = field(default_factory=dict)  # The owners that answered, and the versions they hold.
    refused: dict[PeerId, None] = field(default_factory=dict)
    closer: dict[PeerId, None] = field(default_factory=dict)  # Owners known only by hearsay.


@dataclass(slots=True)
class _Reading:
    """One question of a reader."""

    key: Key
    opened_at: Millis
    asked: dict[PeerId, None] = field(default_factory=dict)
    heard: dict[PeerId, None] = field(default_factory=dict)  # Of those asked now: who has said something.
    answered: dict[PeerId, None] = field(default_factory=dict)
    newest: dict[str, Entry] = field(default_factory=dict)
    closer: dict[PeerId, None] = field(default_factory=dict)


@dataclass(slots=True)
class Coordinator:
    """Collects the answers of owners.

    In:        STORE_PUT, STORE_GET; STORE_ACK, STORE_ENTRIES
    Out:       STORE_REPLICATE, STORE_FETCH; STORE_PUT_DONE, STORE_FOUND
    Keeps:     open questions, until the deadline of whoever asked
    Invariant: a write is done once W owners that answer for its key have it on disk; a read is the newest of all that
               so many of them hold
    """

    neighbourhood: Neighbourhood
    _writings: dict[ItemName, _Writing] = field(default_factory=dict)
    _readings: dict[tuple[PeerId, Stamp], _Reading] = field(default_factory=dict)

    # Writing.

    def put(self, message: StorePut, now: Millis) -> list[Effect]:
        entry = message.entry
        name = ItemName(entry.key, entry.item)
        self._forget(now)
        writing = self._writings.setdefault(name, _Writing(entry, now))
        writing.waiting[entry.stamp, entry.writer] = None
        if entry.supersedes(writing.entry):
            writing.entry = entry
        writing.asked.clear()  # This may be a repetition because our first question was lost.
        return self._replicate(writing)

    def acked(self, sender: PeerId, message: StoreAck, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for version in message.kept:
            writing = self._asked_of(sender, ItemName(version.key, version.item))
            if writing:
                writing.held[sender] = max(version.order, writing.held.get(sender, version.order))
                effects += self._settle(writing, now)
        for name in message.refused:
            writing = self._asked_of(sender, name)
            if writing:
                writing.refused[sender] = None
                effects += self._refuse(writing, now)
        for name in message.not_mine:
            writing = self._asked_of(sender, name)
            if writing and len(writing.closer) < CLOSER_MAX:
                writing.closer |= dict.fromkeys(message.closer)
                effects += self._replicate(writing)
        return effects

    def _asked_of(self, peer: PeerId, name: ItemName) -> _Writing | None:
        """The entry on its way that a peer was asked to keep."""
        writing = self._writings.get(name)
        is_asked = writing is not None and (peer in writing.asked or peer in writing.held)
        return writing if is_asked else None

    def _replicate(self, writing: _Writing) -> list[Effect]:
        """Send the entry to the owners that were not asked yet and do not have it."""
        entry, effects = writing.entry, list[Effect]()
        for owner in self.neighbourhood.owners(entry.key, writing.closer):
            known = (writing.asked.get(owner), writing.held.get(owner))
            if not any(order is not None and order >= entry.order for order in known):
                writing.asked[owner] = entry.order
                effects.append(self.hand(owner, StoreReplicate(entries=(entry,))))
        return effects

    def _settle(self, writing: _Writing, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        newest = max(writing.held.values())
        for put in list(writing.waiting):
            replicas = sum(held >= put for held in writing.held.values())
            if replicas >= self.neighbourhood.needed(now):
                effects.append(self._done(writing, put, newest, replicas))
        return effects

    def _refuse(self, writing: _Writing, now: Millis) -> list[Effect]:
        owners = self.neighbourhood.owners(writing.entry.key, writing.closer)
        if len(owners) - len(writing.refused) >= self.neighbourhood.needed(now):
            return []
        refusal = f"{len(writing.refused)} of {len(owners)} owners of the key have no room for it, or may not take it"
        return [self._done(writing, put, put, 0, refusal) for put in list(writing.waiting)]

    def _done(
        self, writing: _Writing, put: tuple[Stamp, PeerId], newest: Order, replicas: int, refusal: str = ""
    ) -> Effect:
        name = ItemName(writing.entry.key, writing.entry.item)
        del writing.waiting[put]
        if not writing.waiting:
            del self._writings[name]
        stamp, writer = put
        done = StorePutDone(
            name=name, stamp=stamp, replicas=replicas, newest=newest[0], is_newest=newest == put, refusal=refusal
        )
        return self.hand(writer, done)

    # Reading.

    def get(self, message: StoreGet, now: Millis) -> list[Effect]:
        self._forget(now)
        question = (message.reader, message.request)
        reading = self._readings.setdefault(question, _Reading(message.key, now))
        reading.asked.clear()
        reading.heard.clear()
        return self._fetch(question, reading)

    def entries(self, sender: PeerId, message: StoreEntries, now: Millis) -> list[Effect]:
        question = (message.reader, message.request)
        reading = self._readings.get(question)
        if reading is None or sender not in reading.asked or sender in reading.heard:
            return []  # Too late, for the second time, or of a peer that nobody has asked.
        reading.heard[sender] = None
        for entry in message.entries:
            known = reading.newest.get(entry.item)
            if known is None or entry.supersedes(known):
                reading.newest[entry.item] = entry
        if not message.is_owner:
            if len(reading.closer) < CLOSER_MAX:
                reading.closer |= dict.fromkeys(message.closer)
            return self._fetch(question, reading)
        reading.answered[sender] = None
        if len(reading.answered) < self.neighbourhood.needed(now):
            return []
        del self._readings[question]
        found = tuple(reading.newest[item] for item in sorted(reading.newest))
        return [self.hand(message.reader, StoreFound(request=message.request, entries=found))]

    def _fetch(self, question: tuple[PeerId, Stamp], reading: _Reading) -> list[Effect]:
        effects: list[Effect] = []
        reader, request = question
        for owner in self.neighbourhood.owners(reading.key, reading.closer):
            if owner not in reading.asked and owner not in reading.answered:
                reading.asked[owner] = None
                effects.append(self.hand(owner, StoreFetch(key=reading.key, reader=reader, request=request)))
        return effects

    # Both.

    def hand(self, peer: PeerId, message: Message) -> Effect:
        """A message to ourselves does not go through the network."""
        if peer == self.neighbourhood.peer_id:
            return Tell(Received(peer, message))
        return Send(peer, message)

    def _forget(self, now: Millis) -> None:
        limits = self.neighbourhood.limits
        _trim(self._writings, now - limits.deadline_ms, limits.operations_max)
        _trim(self._readings, now - limits.deadline_ms, limits.operations_max)

    def validate(self) -> None:
        limits = self.neighbourhood.limits
        assert max(len(self._writings), len(self._readings)) <= limits.operations_max
        for writing in self._writings.values():
            assert writing.waiting


def _trim(table: dict[Question, Open], since: Millis, most: int) -> None:
    """Forget questions opened too long ago, and the oldest if there is no room for another."""
    while table:
        oldest = next(iter(table))
        if table[oldest].opened_at >= since and len(table) < most:
            break
        del table[oldest]
