"""The evaluator: it keeps tuples and triggers by value, and sends subscribers the results that they make.

It promises to keep, in one life, all it was given for every query that is not over. Where it cannot keep the promise it
begins a new life with nothing. Rewriters and subscribers that counted on the old life see the new one in its messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.effects import Effect, Send
from protocols.errors import RemoteProtocolError
from protocols.ids import Millis, PeerId
from protocols.join_index.expiry import Recently
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    Incarnation,
    JoinId,
    JoinResults,
    Notified,
    Parcel,
    Receipt,
    ResultRows,
    SentTo,
)
from protocols.join_index.tables import RESULTS_BYTES, Tables
from queries.schema import MISFITS

RESEND_MS: Final = 2000  # Results without NOTIFIED are sent again after this time.
LAPSE_MS: Final = 60_000  # A rewriter that has been silent for longer is gone.
UNACKNOWLEDGED_BYTES_MAX: Final = 4 << 20  # Back-pressure: with more in flight to one subscriber, nothing is joined.
PARCELS_MAX: Final = 4096  # That wait their turn.
UNPACKED_MAX: Final = 100_000  # Of one rewriter, that may come again.
TESTS_PER_TURN: Final = 2000  # Work in one event, as Tables.tests_left counts it: 20 ms on a slow machine.
QUERY_TESTS: Final = 50  # To take a query in is as much work as so many tests.


@dataclass(slots=True)
class _OutboundSequence:
    """The numbered results for one subscriber in one of its lives."""

    sequence: int = 0  # Of the last message that was sent.
    unacknowledged: dict[int, tuple[JoinResults, Millis]] = field(default_factory=dict)  # And when each was sent.
    size: int = 0  # Their bytes.


@dataclass(slots=True)
class Evaluator:
    """The evaluator of all values that subscribers have assigned to this peer.

    In:        PARCEL from rewriters, NOTIFIED from subscribers
    Out:       RECEIPT once a parcel is joined, later where a subscriber is slow; JOIN_RESULTS, numbered for each
               subscriber, until NOTIFIED
    Keeps:     its tables, parcels that wait their turn, the results that have not arrived yet
    Invariant: in one life it has all it was given of every query that its subscriber has not ended; one event does no
               more than TESTS_PER_TURN
    Paper:     Idreos et al., ICDE 2006, sections 4 to 6, value level; departures in docs/papers.md
    """

    peer_id: PeerId
    limits: JoinLimits
    life: Millis = 0
    tables: Tables = field(init=False)
    _outbound: dict[Incarnation, _OutboundSequence] = field(default_factory=dict)
    _heard_at: dict[PeerId, Millis] = field(default_factory=dict)  # Rewriters that count on it.
    _brought: dict[PeerId, dict[JoinId, None]] = field(default_factory=dict)  # The queries that each of them brought.
    # Parcels that may come again, with their receipts. One that waits or is being unpacked has none yet.
    _unpacked: dict[PeerId, dict[int, Receipt | None]] = field(default_factory=dict)
    _settled: dict[PeerId, int] = field(default_factory=dict)  # Parcels with lower numbers will not come again.
    _withheld: list[tuple[PeerId, Receipt]] = field(default_factory=list)  # Receipts, until subscribers have caught up.
    _abandoned: Recently[JoinId] = field(default_factory=Recently)  # Released by all rewriters, but not over.
    _parcels: deque[tuple[PeerId, Parcel]] = field(default_factory=deque)  # They wait.
    _unpacking: Iterator[None] | None = None
    _worked_at: Millis = -1  # The time of the last event with work.
    _effects: list[Effect] = field(default_factory=list)  # Of this event's work.

    def __post_init__(self) -> None:
        self.tables = Tables(self.limits)

    def begin(self, now: Millis) -> None:
        """Begin a new life, with nothing."""
        self.life = max(now, self.life + 1)
        self.tables = Tables(self.limits)
        self._outbound, self._heard_at, self._brought = {}, {}, {}
        self._unpacked, self._settled, self._withheld = {}, {}, []
        self._abandoned = Recently()
        self._parcels.clear()
        self._unpacking = None

    # Parcels.

    def unpack(self, sender: PeerId, parcel: Parcel, now: Millis) -> list[Effect]:
        if parcel.counts_on:
            self._heard_at[sender] = now
        for query in parcel.over:
            if not self._may_end(sender, query):
                raise RemoteProtocolError("the end of a query of another subscriber")
        for query in parcel.over:
            self.tables.end(query, now)
            self._drop_results(query)
            for brought in self._brought.values():
                brought.pop(query, None)
        for query in parcel.released:
            self._release(sender, query, now)
        return [*self._accept(sender, parcel), *self._work(now)]

    def _may_end(self, sender: PeerId, query: JoinId) -> bool:
        """Whether a query that is known here is this subscriber's."""
        member = self.tables.queries.get(query)
        if member is not None:
            return member.query.subscriber == sender
        waiting = (each for _, parcel in self._parcels for each in parcel.queries if each.id == query)
        return all(each.subscriber == sender for each in waiting)

    def _release(self, sender: PeerId, query: JoinId, now: Millis) -> None:
        was_brought = query in self._brought.get(sender, {})  # Perhaps by a parcel that waits.
        self._brought.get(sender, {}).pop(query, None)
        is_here = was_brought or query in self.tables.queries
        if is_here and not any(query in brought for brought in self._brought.values()):
            # Its tuples are dropped. A rewriter that brings it again in this life is refused.
            self._abandoned.add(query, now + 2 * LAPSE_MS)
            self.tables.forget(query)
            self._drop_results(query, is_over=False)

    def _accept(self, sender: PeerId, parcel: Parcel) -> list[Effect]:
        """Have a parcel wait its turn, once."""
        if not parcel.number:
            return [Send(sender, Receipt(number=0, life=self.life))]
        unpacked = self._unpacked.setdefault(sender, {})
        settled = self._settled[sender] = max(parcel.settled, self._settled.get(sender, 0))
        while unpacked and next(iter(unpacked)) < settled:
            del unpacked[next(iter(unpacked))]
        if parcel.number in unpacked:
            receipt = unpacked[parcel.number]
            return self._acknowledge(sender, receipt) if receipt is not None else []
        if parcel.after >= settled and parcel.after not in unpacked:
            return []  # Its queries are still on their way; it will be sent again.
        if len(self._parcels) >= PARCELS_MAX or len(unpacked) >= UNPACKED_MAX:
            return []  # It will be sent again.
        self._brought.setdefault(sender, {}).update(dict.fromkeys(query.id for query in parcel.queries))
        unpacked[parcel.number] = None
        self._parcels.append((sender, parcel))
        return []

    def _join(self, sender: PeerId, parcel: Parcel) -> Iterator[None]:
        """Join a parcel with what is here, and acknowledge it in the end."""
        refused, reason = self.tables.refused, ""
        sent: dict[Incarnation, int] = {}
        try:
            if any(query.id in self._abandoned for query in parcel.queries):
                reason = f"peer {self.peer_id.short} had let go of a query"
            else:
                for _ in self._take(sender, parcel):
                    self._send_results(sent)
                    yield
        except (RemoteProtocolError, *MISFITS) as error:  # NotIndexed is one of the former.
            reason = str(error)
        self._send_results(sent)
        if self.tables.refused > refused:
            reason = f"peer {self.peer_id.short} has no room for more of it"
        numbers = tuple(SentTo(peer, life, sequence) for (peer, life), sequence in sent.items())
        receipt = Receipt(number=parcel.number, life=self.life, sent=numbers, refused=reason)
        unpacked = self._unpacked.get(sender, {})
        if parcel.number in unpacked:
            unpacked[parcel.number] = receipt
        self._effects += self._acknowledge(sender, receipt)

    def _take(self, sender: PeerId, parcel: Parcel) -> Iterator[None]:
        """Take in the queries of a parcel, then its tuples and triggers."""
        for query in parcel.queries:
            if query.id not in self._brought.get(sender, {}):
                continue  # Released or over while the parcel waited.
            before = self.tables.know(query, self._worked_at)
            if before is not None:  # An earlier attempt of the same query.
                self._drop_results(before)
            self.tables.tests_left -= QUERY_TESTS
            if self.tables.tests_left <= 0:
                yield
        for load in parcel.loads:
            yield from self.tables.take(load, self._worked_at)

    # Work.

    @property
    def has_work(self) -> bool:
        """Whether there is something to go on with in another event."""
        has_parcels = self._unpacking is not None or bool(self._parcels)
        return self._has_chores or (has_parcels and not self._is_ahead())

    @property
    def _has_chores(self) -> bool:
        return bool(self.tables.chores) and self._unpacking is None  # Only one generator changes the tables at a time.

    def go_on(self, now: Millis) -> list[Effect]:
        """Go on with what was too much for the events before."""
        self._worked_at = -1
        return self._work(now)

    def _work(self, now: Millis) -> list[Effect]:
        """Work as much as one event may. All that happens in one millisecond counts as one event."""
        if now != self._worked_at:
            self._worked_at, self.tables.tests_left = now, TESTS_PER_TURN
        while self.tables.tests_left > 0 and self.has_work:
            if self._has_chores:
                if next(self.tables.chores[0], True):
                    self.tables.chores.popleft()
                continue
            if self._unpacking is None:
                self._unpacking = self._join(*self._parcels.popleft())
            if next(self._unpacking, True):
                self._unpacking = None
        effects, self._effects = self._effects, []
        return effects

    def _acknowledge(self, sender: PeerId, receipt: Receipt) -> list[Effect]:
        """Back-pressure: while a subscriber is slow, receipts wait, and rewriters without receipts stop reading."""
        if self._is_ahead():
            if (sender, receipt) not in self._withheld:
                self._withheld.append((sender, receipt))
            return []
        return [Send(sender, receipt)]

    def _is_ahead(self) -> bool:
        """Whether a subscriber is slow to acknowledge results."""
        return any(outbound.size > UNACKNOWLEDGED_BYTES_MAX for outbound in self._outbound.values())

    def _drop_results(self, query: JoinId, *, is_over: bool = True) -> None:
        """Drop the results of a query that its subscriber has not acknowledged. Their messages keep their numbers."""
        for outbound in self._outbound.values():
            for sequence, (message, sent_at) in outbound.unacknowledged.items():
                kept = tuple(each for each in message.results if each.query != query)
                if len(kept) < len(message.results):
                    outbound.size -= _size(message.results)
                    outbound.size += _size(kept)
                    dropped = message.dropped if is_over else (*message.dropped, query)
                    outbound.unacknowledged[sequence] = (
                        msgspec.structs.replace(message, results=kept, dropped=dropped),
                        sent_at,
                    )

    # Results.

    def _send_results(self, sent: dict[Incarnation, int]) -> None:
        """Send subscribers what was found, and note the numbers of the messages in `sent`."""
        found: dict[Incarnation, list[ResultRows]] = {}
        for member, results in self.tables.results():
            found.setdefault((member.query.subscriber, member.query.life), []).append(results)
        late: dict[Incarnation, list[JoinId]] = {}
        for name, member in self.tables.late.items():
            late.setdefault((member.query.subscriber, member.query.life), []).append(name)
        self.tables.late.clear()
        for whom in found | dict.fromkeys(late):
            if whom not in self._outbound:
                for before in [each for each in self._outbound if each[0] == whom[0] and each[1] < whom[1]]:
                    del self._outbound[before]
            outbound = self._outbound.setdefault(whom, _OutboundSequence())
            for some in _portions(found.get(whom, [])) or [()]:
                outbound.sequence += 1
                message = JoinResults(
                    life=self.life,
                    subscriber_life=whom[1],
                    sequence=outbound.sequence,
                    results=some,
                    late=tuple(late.pop(whom, ())),
                )
                outbound.unacknowledged[outbound.sequence] = (message, self._worked_at)
                outbound.size += _size(some)
                sent[whom] = message.sequence
                self._effects.append(Send(whom[0], message))

    def notified(self, sender: PeerId, message: Notified) -> list[Effect]:
        outbound = self._outbound.get((sender, message.subscriber_life))
        arrived = outbound.unacknowledged.pop(message.sequence, None) if outbound is not None else None
        if outbound is not None and arrived is not None:
            outbound.size -= _size(arrived[0].results)
        return self._send_withheld()

    def _send_withheld(self) -> list[Effect]:
        if not self._withheld or self._is_ahead():
            return []
        withheld, self._withheld = self._withheld, []
        return [Send(peer, receipt) for peer, receipt in withheld]

    # Time.

    def sweep(self, now: Millis) -> list[Effect]:
        """Send results again that have not arrived, and let go of what has expired."""
        if self._has_lapsed(now):
            # Forgetting these queries alone is not enough: a rewriter that comes back would not notice the loss.
            self.begin(now)
            return []
        self.tables.sweep(now)
        self._abandoned.sweep(now)
        effects: list[Effect] = []
        for (peer, _), outbound in self._outbound.items():
            for sequence, (message, sent_at) in outbound.unacknowledged.items():
                if now - sent_at >= RESEND_MS:
                    outbound.unacknowledged[sequence] = (message, now)
                    effects.append(Send(peer, message))
        return effects + self._send_withheld() + self._work(now)

    def _has_lapsed(self, now: Millis) -> bool:
        """Whether all rewriters of some query are gone, though its subscriber has not ended it."""
        gone = [sender for sender, heard_at in self._heard_at.items() if now - heard_at > LAPSE_MS]
        if not gone:
            return False
        theirs = {query for sender in gone for query in self._brought.pop(sender, {})}
        for sender in gone:
            del self._heard_at[sender]
            self._unpacked.pop(sender, None)
            self._settled.pop(sender, None)
        theirs.difference_update(*self._brought.values())
        return not theirs.isdisjoint(self.tables.queries)

    def is_empty(self) -> bool:
        """Whether no query is left, no tuple, and nothing to do."""
        return self.tables.is_empty() and not self._parcels and self._unpacking is None

    @property
    def remembers(self) -> bool:
        """Whether it knows of queries that are gone, for a while yet."""
        return self.tables.remembers or len(self._abandoned) > 0

    def validate(self) -> None:
        self.tables.validate()
        assert not self._effects, "they leave with the event that made them"
        for outbound in self._outbound.values():
            assert all(sequence <= outbound.sequence for sequence in outbound.unacknowledged)
            assert outbound.size == sum(_size(message.results) for message, _ in outbound.unacknowledged.values())


def _size(results: tuple[ResultRows, ...]) -> int:
    return sum(len(each.rows) + 8 * len(each.made_of) for each in results)


def _portions(results: list[ResultRows]) -> list[tuple[ResultRows, ...]]:
    """Results cut into messages that are not too large."""
    portions: list[list[ResultRows]] = []
    size = RESULTS_BYTES
    for each in results:
        if size >= RESULTS_BYTES:
            portions.append([])
            size = 0
        portions[-1].append(each)
        size += _size((each,)) + 200
    return [tuple(portion) for portion in portions]
