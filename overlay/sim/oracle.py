"""What a network of streams owes its clients, computed over plain lists: the judge of every simulation.

It hears what clients asked and were told, and knows nothing of peers, logs or messages. While faults last nothing false
may be delivered; after they have healed everything due must be delivered (contract: G1 no loss, G2 once, G3 nothing
spurious, G4 order, G5 time, G6 counters).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from protocols.catalogue.messages import StreamShown
from protocols.catalogue.streams import Durability
from protocols.clock import COUNT_BITS, Stamp
from protocols.delivery.dead_letters import TRIES_MAX
from protocols.delivery.messages import Missed, Origin, Position, Published
from protocols.ids import Millis, PeerId, StreamName, SubscriptionId
from queries.catalogue import DAY_MS

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
    is_sure: bool = True  # Its client was never cut off, so a refusal means that it had no effect.
    excused: bool = False  # The only copy that its durability promises is gone: it may be lost, and may still arrive.


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
    refuses: Callable[[RowNumber], bool] = lambda row: False  # The rows that its client cannot process.
    deaths: int = 0  # How often its client vanished without a word.
    buried: dict[RowNumber, None] = field(default_factory=dict)  # Its dead letters, as listed last,
    lost_letters: dict[RowNumber, None] = field(default_factory=dict)  # and those that were lost with the disk.
    # Gaps, with the latest stamp they may cover.
    told_missing: list[tuple[Missed, Stamp]] = field(default_factory=list)

    def was_told_of(self, publication: Publication, sequence: int) -> bool:
        return any(
            publication.peer == gap.origin.publisher and gap.first <= sequence < gap.next and publication.stamp <= upto
            for gap, upto in self.told_missing
        )

    def may_be_buried(self, row: RowNumber) -> bool:
        return self.refuses(row) or self.deaths >= TRIES_MAX

    def is_done_with(self, row: RowNumber) -> bool:
        return row in self.received or row in self.buried or row in self.lost_letters

    def where(self) -> tuple[Position, ...]:
        return tuple(Position(origin, upto) for origin, upto in self.positions.items())


@dataclass(slots=True)
class Oracle:
    """Everything that clients did, and what follows from it."""

    durabilities: dict[StreamName, Durability] = field(default_factory=dict)
    retentions_ms: dict[StreamName, Millis] = field(default_factory=dict)
    dropped: dict[StreamName, None] = field(default_factory=dict)  # Somebody asked for its removal.
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

    def accepted(self, publication: Publication, answer: Published, clock_off_since: Millis | None = None) -> None:
        """A peer acknowledged a publish; the last argument says how long it has known its clock to be off."""
        if answer.count != len(publication.rows):
            raise Violation(f"{answer} accepts another number of rows than {publication} has")
        if clock_off_since is not None and publication.is_sure and clock_off_since <= publication.asked_at:
            raise Violation(f"{answer} was stamped by a peer that knew its clock to be wrong: {publication}")
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
        elif row in reading.buried:
            wrong = "lies in the dead letters"
        elif sequence < reading.positions.get(origin, 0):
            wrong = f"came after {reading.positions[origin] - 1}"
        else:
            reading.received[row] = (origin, sequence)
            reading.positions[origin] = sequence + 1
            return
        raise Violation(f"subscription {reading.subscription}: row {row}, {origin} {sequence}, {wrong}")

    def missed(self, reading: Reading, answer: Missed, now: Millis) -> None:
        """A client was told of a gap, at this time of the wall clock.

        What was due stays due unless it is older than the stream's retention. `memory` streams are an exception: they
        keep only what the subscriptions known to their ingress peer have not read, and a later one is told of a gap.
        """
        kept_since = now - self.retentions_ms.get(reading.stream, DAY_MS) + SKEW_MAX_MS
        is_in_memory = self.durabilities[reading.stream] == "memory"
        reading.told_missing.append((answer, _FOR_EVER if is_in_memory else kept_since << COUNT_BITS))
        reading.positions[answer.origin] = max(answer.next, reading.positions.get(answer.origin, 0))

    def put_aside(self, reading: Reading, origin: Origin, sequence: int, refused: tuple[int, RowNumber] | None) -> None:
        """A client was told that a tuple is now a dead letter; if it refused one, it must be that one."""
        if refused is not None:
            if refused[0] != sequence:
                raise Violation(f"subscription {reading.subscription}: {origin} {sequence} put aside, not {refused}")
            reading.buried[refused[1]] = None
        reading.positions[origin] = max(sequence + 1, reading.positions.get(origin, 0))

    def letters(self, reading: Reading, listed: Sequence[tuple[Origin, RowNumber]]) -> None:
        """Judge the dead letters of a subscription: only what its client refuses, each once, and for good."""
        name = reading.subscription
        rows = dict.fromkeys(row for _, row in listed)
        if len(rows) != len(listed):
            raise Violation(f"subscription {name}: a tuple lies twice in the dead letters: {listed}")
        if gone := [row for row in reading.buried if row not in rows]:
            raise Violation(f"subscription {name}: rows {gone} are gone from the dead letters")
        for origin, row in listed:
            publication = self._by_row.get(row)
            if publication is None or (publication.stream, publication.peer) != (reading.stream, origin.publisher):
                raise Violation(f"subscription {name}: row {row} of {origin} in the dead letters was never published")
            if row in reading.received:
                raise Violation(f"subscription {name}: row {row} was processed, and lies in the dead letters")
            if not reading.may_be_buried(row):
                raise Violation(f"subscription {name}: row {row} was never refused, and lies in the dead letters")
        reading.buried = rows

    def shown(self, answer: StreamShown) -> None:
        """Judge the public counters: nothing is dropped silently."""
        for each in answer.publishers:
            if each.accepted != each.processed + each.pending + each.dead_lettered + each.expired:
                raise Violation(f"counters of {answer.definition.name} do not balance: {each}")

    # What befell a peer.

    def crashed(self, peer: PeerId, *, with_disk: bool) -> None:
        """A peer lost what it had in memory, perhaps with its disk."""
        kept = ("replicated",) if with_disk else ("disk", "replicated")
        for publication in self.publications:
            if publication.peer == peer and self.durabilities[publication.stream] not in kept:
                publication.excused = True

    def lose_letters(self, reading: Reading) -> None:
        """The disk with the dead letters is gone: those listed, and those that the client has passed."""
        for publication in self.publications:
            passed = [upto for origin, upto in reading.positions.items() if origin.publisher == publication.peer]
            if publication.stream == reading.stream and publication.outcome == "accepted" and passed:
                for sequence, row in enumerate(publication.rows, start=publication.first):
                    if sequence < max(passed) and reading.may_be_buried(row):
                        reading.lost_letters[row] = None
        reading.lost_letters.update(reading.buried)
        reading.buried = {}

    # What is due.

    def due(self) -> list[str]:
        """What should have been delivered and was not; empty when all is well."""
        return [
            f"subscription {reading.subscription}: row {row} of {publication}"
            for reading in self.readings
            if reading.opened_at >= 0 and not reading.excused and reading.stream not in self.dropped
            for publication in self.publications
            if publication.stream == reading.stream
            and publication.outcome == "accepted"
            and publication.stamp > reading.stamp
            and not publication.excused
            for sequence, row in enumerate(publication.rows, start=publication.first)
            if not reading.is_done_with(row) and not reading.was_told_of(publication, sequence)
        ]

    def check_end(self) -> None:
        """Judge what is known only at the end: every reader names a tuple alike."""
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
