"""What a subscriber knows of the readers that serve its queries, and of what evaluators have sent it.

A report (COVERED) says how far a reader has come, and how many results each evaluator had sent by then. The subscriber
believes a report once all these results are here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from protocols.delivery.messages import Origin
from protocols.ids import Millis, PeerId
from protocols.join_index.messages import Covered, JoinId
from protocols.join_index.reader import HeldName

AHEAD_MAX: Final = 100_000  # Messages of one evaluator that may overtake each other.


@dataclass(slots=True)
class InboundSequence:
    """The numbers of the messages that one incarnation of an evaluator has sent here."""

    upto: int = 0  # Everything up to this number has arrived.
    _ahead: dict[int, None] = field(default_factory=dict)  # Later ones that have arrived, too.

    def take(self, sequence: int) -> bool:
        """Note a number; False if it was here before."""
        if sequence <= self.upto or sequence in self._ahead:
            return False
        self._ahead[sequence] = None
        while self.upto + 1 in self._ahead:
            self.upto += 1
            del self._ahead[self.upto]
        return True


@dataclass(slots=True, eq=False)
class ReaderSeen:
    """One reader, as its reports show it."""

    peer: PeerId
    heard_at: Millis
    members: dict[HeldName, int] = field(default_factory=dict)  # What it serves, and the first report that counts.
    latest: Covered | None = None
    waiting: Covered | None = None  # The latest report, while some of the results it counts are not here.
    believed: int = 0  # The number of the last report that is believed.
    covers: dict[Origin, int] = field(default_factory=dict)  # What that report covered.


@dataclass(slots=True)
class Reports:
    """The readers that serve the queries of one subscriber.

    Keeps:     readers that serve at least one query; the life of each evaluator, and what has arrived of it
    Invariant: a believed report counts no result that is not here
    """

    readers: dict[str, ReaderSeen] = field(default_factory=dict)
    _lives: dict[PeerId, Millis] = field(default_factory=dict)  # Of evaluators.
    _inbound: dict[tuple[PeerId, Millis], InboundSequence] = field(default_factory=dict)

    def enter(self, held: HeldName, reader: str, sender: PeerId, report: int, now: Millis) -> None:
        """A reader serves one more side of a query, from this report on."""
        seen = self.readers.setdefault(reader, ReaderSeen(sender, now))
        seen.heard_at = now
        seen.members.setdefault(held, report)

    def leave(self, held: HeldName, reader: str) -> None:
        del self.readers[reader].members[held]
        if not self.readers[reader].members:
            del self.readers[reader]

    def take(self, peer: PeerId, life: Millis, sequence: int) -> bool:
        """Note that results of an evaluator have arrived; False if they had arrived before."""
        return self._inbound.setdefault((peer, life), InboundSequence()).take(sequence)

    def is_near(self, peer: PeerId, life: Millis, sequence: int) -> bool:
        """Whether results may have this number: no more than AHEAD_MAX can be under way."""
        inbound = self._inbound.get((peer, life))
        return sequence <= (inbound.upto if inbound is not None else 0) + AHEAD_MAX

    def restarted(self, peer: PeerId, life: Millis) -> list[JoinId]:
        """Note the life of an evaluator, and return the queries that count on another life of it."""
        if self._lives.get(peer) == life:
            return []
        self._lives[peer] = life
        for before in [each for each in self._inbound if each[0] == peer and each[1] != life]:
            del self._inbound[before]
        lost: dict[JoinId, None] = {}
        for seen in self.readers.values():
            report = seen.latest
            if report is not None and any(each.peer == peer and each.life != life for each in report.sent):
                lost |= {query: None for query, _, _ in seen.members}
        return list(lost)

    def newly_believed(self) -> Iterator[ReaderSeen]:
        """Believe the reports whose results are all here, and yield their readers."""
        for seen in list(self.readers.values()):
            report = seen.waiting
            if report is None or not self._has_all(report):
                continue
            seen.waiting, seen.believed = None, report.report
            for position in report.covers:
                seen.covers[position.origin] = max(position.next, seen.covers.get(position.origin, 0))
            yield seen

    def _has_all(self, report: Covered) -> bool:
        for each in report.sent:
            inbound = self._inbound.get((each.peer, each.life))
            if each.sequence > (inbound.upto if inbound is not None else 0):
                return False
        return True
