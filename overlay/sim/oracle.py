"""What a network of streams owes its clients, computed over plain lists: the judge of every simulation.

It hears what clients asked and were told, and knows nothing of peers, logs or messages. While faults last nothing false
may be delivered; once they are over everything due must be (contract: G1 no loss, G2 once, G3 nothing spurious, G4
order, G5 time, G6 counters).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from protocols.catalogue.messages import StreamShown
from protocols.catalogue.streams import DAY_MS, Durability
from protocols.clock import COUNT_BITS, Stamp
from protocols.delivery.messages import Missed, Origin, Position, Published
from protocols.ids import Millis, PeerId, StreamName, SubscriptionId

SKEW_MAX_MS: Final = 3_000  # Of any clock in a simulation.
_FOR_EVER: Final[Stamp] = 1 << 80
RowNumber = int
"""Every row of a simulation carries a number of its own."""


class Violation(Exception):
    """Something was delivered, or promised, that should not have been."""


@dataclass(slots=True)
class Publication:
    """One publish, as its client sees it."""

    stream: StreamName
    peer: PeerId
    rows: tuple[RowNumber, ...]
    asked_at: Millis
    witness: Stamp
    outcome: Literal["open", "accepted", "refused", "unknown"] = "open"
    first: int = -1
    stamp: Stamp = 0
    is_sure: bool = True  # Its client was never cut off: a refusal means that it has not taken effect.
    excused: bool = False  # The one copy its durability promises is gone: it may be lost, and may still arrive.


@dataclass(slots=True)
class Reading:
    """One subscription, as its client sees it."""

    subscription: SubscriptionId
    stream: StreamName
    opened_at: Millis = -1
    stamp: Stamp = 0  # Everything younger is due.
    received: dict[RowNumber, tuple[Origin, int]] = field(default_factory=dict)
    positions: dict[Origin, int] = field(default_factory=dict)
    excused: bool = False  # Nothing is promised to it any more.
    told_missing: list[tuple[Missed, Stamp]] = field(default_factory=list)  # Gaps, and up to which stamp they may be.

    def was_told_of(self, publication: Publication) -> bool:
        return any(
            publication.peer == gap.origin.publisher
            and gap.first <= publication.first < gap.next
            and publication.stamp <= upto
            for gap, upto in self.told_missing
        )

    def where(self) -> tuple[Position, ...]:
        return tuple(Position(origin, upto) for origin, upto in self.positions.items())


@dataclass(slots=True)
class Oracle:
    """Everything that clients did, and what follows from it."""

    durabilities: dict[StreamName, Durability] = field(default_factory=dict)
    retentions_ms: dict[StreamName, Millis] = field(default_factory=dict)
    publications: list[Publication] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    _by_row: dict[RowNumber, Publication] = field(default_factory=dict)

    # What clients do, and are told.

    @property
    def accepted_count(self) -> int:
        """How many publishes were promised to be safe."""
        return sum(each.outcome == "accepted" for each in self.publications)

    def asked(self, publication: Publication) -> None:
        self.publications.append(publication)
        self._by_row.update(dict.fromkeys(publication.rows, publication))

    def accepted(self, publication: Publication, answer: Published) -> None:
        if answer.count != len(publication.rows):
            raise Violation(f"{answer} accepts another number of rows than {publication} has")
        if answer.stamp <= publication.witness:
            raise Violation(f"{answer} is not younger than what its client had seen: {publication}")
        publication.outcome, publication.first, publication.stamp = "accepted", answer.first, answer.stamp

    def refused(self, publication: Publication) -> None:
        publication.outcome = "refused"
        for reading in self.readings:
            if any(row in reading.received for row in publication.rows):
                raise Violation(f"{publication} is refused, and subscription {reading.subscription} has it")

    def opened(self, reading: Reading, stamp: Stamp, now: Millis) -> None:
        if reading.opened_at < 0:
            reading.opened_at, reading.stamp = now, stamp

    def received(self, reading: Reading, origin: Origin, sequence: int, row: RowNumber) -> None:
        """A row reached a client."""
        publication = self._by_row.get(row)
        if publication is None or publication.stream != reading.stream:
            wrong = "was never published to this stream"
        elif publication.outcome == "refused":
            wrong = "was refused"
        elif publication.peer != origin.publisher:
            wrong = f"was published at {publication.peer!r}"
        elif row in reading.received:
            wrong = f"came before, as {reading.received[row]}"
        elif sequence < reading.positions.get(origin, 0):
            wrong = f"came after {reading.positions[origin] - 1}"
        else:
            reading.received[row] = (origin, sequence)
            reading.positions[origin] = sequence + 1
            return
        raise Violation(f"subscription {reading.subscription}: row {row}, {origin} {sequence}, {wrong}")

    def missed(self, reading: Reading, answer: Missed, now: Millis) -> None:
        """A client was told of a gap, at this time of the wall clock.

        What was due to it stays due unless its stream keeps nothing for so long, but for `memory` streams: they keep
        what the subscriptions known to their ingress peer have not read, and say so to one that it came to know too
        late.
        """
        kept_since = now - self.retentions_ms.get(reading.stream, DAY_MS) + SKEW_MAX_MS
        is_in_memory = self.durabilities[reading.stream] == "memory"
        reading.told_missing.append((answer, _FOR_EVER if is_in_memory else kept_since << COUNT_BITS))
        reading.positions[answer.origin] = max(answer.next, reading.positions.get(answer.origin, 0))

    def shown(self, answer: StreamShown) -> None:
        """Judge the public counters: nothing is dropped in silence."""
        for each in answer.publishers:
            if each.accepted != each.processed + each.pending + each.expired:
                raise Violation(f"counters of {answer.definition.name} do not balance: {each}")

    # What befell a peer.

    def crashed(self, peer: PeerId, *, with_disk: bool) -> None:
        """A peer forgot what it had in memory, or on its disk too."""
        kept = ("replicated",) if with_disk else ("disk", "replicated")
        for publication in self.publications:
            if publication.peer == peer and self.durabilities[publication.stream] not in kept:
                publication.excused = True

    # What is due.

    def due(self) -> list[str]:
        """What should have been delivered and has not been; empty when all is well."""
        return [
            f"subscription {reading.subscription}: row {row} of {publication}"
            for reading in self.readings
            if reading.opened_at >= 0 and not reading.excused
            for publication in self.publications
            if publication.stream == reading.stream
            and publication.outcome == "accepted"
            and publication.stamp > reading.stamp
            and not publication.excused
            and not reading.was_told_of(publication)
            for row in publication.rows
            if row not in reading.received
        ]

    def check_end(self) -> None:
        """Judge what can be told only when all has happened: everybody calls a tuple by the same name."""
        names: dict[RowNumber, tuple[Origin, int]] = {}
        for reading in self.readings:
            for row, name in reading.received.items():
                if names.setdefault(row, name) != name:
                    raise Violation(f"row {row} is {name} here and {names[row]} there")
        for publication in self.publications:
            for sequence, row in enumerate(publication.rows, start=publication.first):
                if publication.outcome == "accepted" and row in names and names[row][1] != sequence:
                    raise Violation(f"row {row} of {publication} was delivered as {names[row]}")

    @property
    def deliveries(self) -> int:
        return sum(len(reading.received) for reading in self.readings)
