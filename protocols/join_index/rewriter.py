"""The rewriter: it reads streams for the queries indexed at it, and sends evaluators tuples and triggers.

Nobody sends it tuples: it reads them from the log of their stream. One reader serves all queries of an attribute. A new
query joins a reader that is under way, and the rewriter replays recent tuples for it, some in each event. If some of
these are no longer in memory, the query gets a reader of its own, which merges with the other once it has caught up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from protocols.catalogue.shares import PublisherShare
from protocols.catalogue.streams import Reads
from protocols.delivery.messages import (
    Batch,
    Missed,
    Opened,
    OpenSubscription,
    Origin,
    Position,
    Rows,
    Seen,
    subscription_name,
)
from protocols.effects import Effect, Send, Tell
from protocols.errors import expect
from protocols.events import Abandoned
from protocols.ids import Millis, PeerId, RequestId
from protocols.inside import Inside
from protocols.join_index.condition import NotIndexed
from protocols.join_index.expiry import Recently
from protocols.join_index.heavy import Spread
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    AskEvaluators,
    Covered,
    Evaluators,
    Heavy,
    IndexQuery,
    JoinId,
    KeepQueries,
    Load,
    Parcel,
    QueryIndexed,
    QueryLost,
    QueryRefused,
    Receipt,
    RemoveQuery,
    SentBy,
)
from protocols.join_index.panel import Panel
from protocols.join_index.parcels import Parcels
from protocols.join_index.reader import (
    PIECE_BYTES,
    PIECE_ROWS,
    Dispatch,
    Held,
    HeldName,
    Reader,
    TupleTooLarge,
    pieces_of,
)
from protocols.join_index.selections import Member
from protocols.messages import Answer, Refused
from queries.schema import MISFITS

ROLE: Final = "joins"
LEASE_MS: Final = 20_000  # A query that no KEEP_QUERIES names for so long is forgotten.
SILENT_MS: Final = 6000  # An evaluator that has been silent for longer is taken for lost.
REPORT_MS: Final = 100  # The least time between two reports of a reader.
RELEASED_MS: Final = 30_000  # Evaluators are told for so long that a query is released: a message may get lost.
REFUSE_RELEASED_MS: Final = 120_000  # A released query is refused for so long: messages about it may still arrive.


@dataclass(slots=True, eq=False)
class _Replay:
    """Recent tuples that are still to be sent for a query."""

    reader: Reader
    held: Held
    dispatch: Dispatch  # It counts one parcel more until all are sent, so that it is not done before.
    pieces: Iterator[Batch]
    is_done: bool = False

    def some(self) -> list[Batch]:
        """As many of them as one event may carry."""
        found: list[Batch] = []
        rows = 0
        for piece in self.pieces:
            found.append(piece)
            rows += max(piece.count, PIECE_ROWS * len(piece.rows) // PIECE_BYTES)
            if rows >= PIECE_ROWS:
                return found
        self.is_done = True
        return found


@dataclass(slots=True)
class Rewriter:
    """The rewriter of all attributes whose keys lead to this peer.

    In:        ASK_EVALUATORS, QUERY, KEEP_QUERIES, REMOVE_QUERY from subscribers; tuples of streams; RECEIPT from
               evaluators
    Out:       EVALUATORS, QUERY_INDEXED, QUERY_REFUSED, QUERY_LOST, COVERED; PARCEL to evaluators
    Keeps:     readers with their queries; parcels until their receipt; whom it names as evaluators
    Invariant: evaluators have unpacked what COVERED says, and still have it; if one has restarted, QUERY_LOST follows
    Paper:     Idreos et al., ICDE 2006, sections 4 to 6, attribute level; departures in docs/papers.md
    """

    peer_id: PeerId
    limits: JoinLimits
    inside: Inside
    neighbours: Callable[[], tuple[PeerId, ...]] = tuple
    life: Millis = 0
    readers: dict[str, Reader] = field(default_factory=dict)
    _held_by: dict[HeldName, Reader] = field(default_factory=dict)
    _sides: dict[JoinId, dict[HeldName, None]] = field(default_factory=dict)  # The sides held of each query.
    _requests: dict[RequestId, Reader] = field(default_factory=dict)
    _parcels: Parcels = field(default_factory=Parcels)
    _seen_at: dict[PeerId, Millis] = field(default_factory=dict)  # When each evaluator was last heard.
    _released: dict[PeerId, dict[JoinId, Millis]] = field(default_factory=dict)  # Until when each evaluator is told.
    _gone: Recently[JoinId] = field(default_factory=Recently)  # Released queries: not taken again for a while.
    _spreads: dict[tuple[tuple[PeerId, ...], tuple[Heavy, ...]], Spread] = field(default_factory=dict)
    _panel: Panel = field(init=False)
    _replays: deque[_Replay] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._panel = Panel(self.peer_id, self.neighbours)

    def begin(self, now: Millis) -> None:
        self.life = now
        self._parcels.begin(now)

    # Queries.

    def name_evaluators(self, sender: PeerId, message: AskEvaluators, now: Millis) -> list[Effect]:
        """Name the same to everyone, so that their queries share readers."""

        def is_used(peers: tuple[PeerId, ...]) -> bool:
            return any(evaluators == peers for evaluators, _ in self._spreads)

        self._panel.shun(message.shunned, now)
        return [Send(sender, Evaluators(query=message.query, peers=self._panel.peers(now, is_used)))]

    def index(self, sender: PeerId, message: IndexQuery, now: Millis) -> list[Effect]:
        name = (message.query.id, message.side, message.replica)
        known = self._held_by.get(name)
        expect(message.query.subscriber == sender, "a query of another subscriber")
        if known is not None:
            expect(known.held[name].subscriber == sender, "a query of another subscriber")
            known.held[name].leased_at = now
            return _indexed(known, [known.held[name]])
        try:
            member = Member(message.query)
        except NotIndexed as error:
            return [Send(sender, QueryRefused(query=message.query.id, reason=str(error)))]
        reason = self._refusal(message)
        if reason:
            return [Send(sender, QueryRefused(query=message.query.id, reason=reason))]
        if message.query.id in self._gone:  # Evaluators may have dropped its tuples: it needs a new attempt.
            reason = f"peer {self.peer_id.short} has forgotten it"
            return [Send(sender, QueryLost(query=message.query.id, reason=reason))]
        held = Held(member, message, sender, now)
        reader, effects = self._reader_for(held)
        self._held_by[name] = reader
        self._sides.setdefault(name[0], {})[name] = None
        reader.add(held)
        replayed = [batch for batch in reader.recent if batch.published_at >= member.inserted_at]
        if replayed:
            held.awaits = Dispatch(parcels=1)
            reader.joining[name] = held
            reader.dispatches.append(held.awaits)
            is_first = not self._replays
            self._replays.append(_Replay(reader, held, held.awaits, pieces_of(replayed)))
            return effects + (self.go_on(now) if is_first else [])
        return [*effects, *_indexed(reader, [held])]

    @property
    def has_work(self) -> bool:
        """Whether there is something to go on with in another event."""
        return bool(self._replays)

    def go_on(self, now: Millis) -> list[Effect]:
        """Replay some more tuples for a query that has joined a reader."""
        if not self._replays:
            return []
        replay = self._replays[0]
        reader, held = replay.reader, replay.held
        is_open = reader.name in self.readers
        effects: list[Effect] = []
        if is_open and reader.held.get(held.name) is held:
            try:
                effects += self._carry(reader, replay.dispatch, reader.loads_for(held, replay.some()), now)
            except (*MISFITS, TupleTooLarge) as error:
                self._replays.popleft()
                return self._lose(reader, _why(reader, error), now)
        else:
            replay.is_done = True
        if replay.is_done:
            self._replays.popleft()
            replay.dispatch.parcels -= 1
            effects += self._settle(reader, now) if is_open else []
        return effects

    def _refusal(self, message: IndexQuery) -> str:
        """Why a query cannot be indexed here; empty: it can."""
        if not message.evaluators:
            return "it names no evaluators"
        if not PublisherShare(message.replica, message.replicas).is_sound:
            return f"it names replica {message.replica} of {message.replicas}"
        if len(self._held_by) >= self.limits.queries_max:
            return f"peer {self.peer_id.short} has {self.limits.queries_max} join queries already"
        return ""

    def _reader_for(self, held: Held) -> tuple[Reader, list[Effect]]:
        """A reader that still has all it read since the query was posed, or a new one."""
        inserted_at = held.member.inserted_at
        agreed = (held.message.evaluators, held.message.heavy)
        spread = self._spreads.setdefault(agreed, Spread(*agreed))
        for reader in self.readers.values():
            is_alike = reader.is_like(held.attribute, held.source.schema, spread, held.share)
            has_all_since = reader.since <= inserted_at and reader.forgotten < inserted_at
            if is_alike and has_all_since:
                return reader, []
        number = f"{self.life:x}-{self._parcels.next_number():x}"
        name = subscription_name(f"join/{held.attribute}/{self.peer_id.short}/{number}")
        reads = Reads(version=held.source.schema.version, reader="joins through the index")
        stream, share = held.source.stream, held.share
        command = OpenSubscription(stream=stream, subscription=name, since=inserted_at, share=share, reads=reads)
        request, effect = self.inside.ask(ROLE, command)
        reader = Reader(name, held.attribute, held.source.schema, request, inserted_at, spread, held.share)
        self.readers[name] = self._requests[request] = reader
        return reader, [effect]

    def keep(self, sender: PeerId, message: KeepQueries, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for name in message.queries:
            reader = self._held_by.get(name)
            if reader is not None:
                expect(reader.held[name].subscriber == sender, "a query of another subscriber")
                reader.held[name].leased_at = now
            else:
                reason = f"peer {self.peer_id.short} has forgotten it"
                effects.append(Send(sender, QueryLost(query=name[0], reason=reason)))
        return effects

    def remove(self, sender: PeerId, message: RemoveQuery, now: Millis) -> list[Effect]:
        for reader in self.readers.values():
            if message.query in reader.lapsed and reader.lapsed[message.query][0] == sender:
                del reader.lapsed[message.query]
        names = list(self._sides.get(message.query, ()))
        is_theirs = all(self._held_by[name].held[name].subscriber == sender for name in names)
        expect(is_theirs, "a query of another subscriber")
        return [effect for name in names for effect in self._forget(name, now)]

    def _forget(self, name: HeldName, now: Millis) -> list[Effect]:
        reader = self._held_by[name]
        self._unfile(name)
        reader.remove(name)
        self._release(reader, name[:1], now)
        return [] if reader.held else self._close(reader)

    def _unfile(self, name: HeldName) -> None:
        del self._held_by[name]
        del self._sides[name[0]][name]
        if not self._sides[name[0]]:
            del self._sides[name[0]]

    def _release(self, reader: Reader, queries: Iterable[JoinId], now: Millis) -> None:
        """Tell evaluators, for a while, that they need not keep queries for this peer."""
        for query in queries:
            if query in self._sides:
                continue
            self._gone.add(query, now + REFUSE_RELEASED_MS)
            for peer in reader.spread.evaluators:
                self._released.setdefault(peer, {})[query] = now + RELEASED_MS

    def _close(self, reader: Reader) -> list[Effect]:
        del self.readers[reader.name]
        if not any(each.spread is reader.spread for each in self.readers.values()):
            del self._spreads[reader.spread.evaluators, reader.spread.heavy]
        self._requests.pop(reader.request, None)
        for name in reader.held:
            self._unfile(name)
        self._parcels.drop(reader)
        self.inside.forget(reader.request)
        return [Tell(Abandoned(reader.request))]

    def _lose(self, reader: Reader, reason: str, now: Millis, culprit: PeerId | None = None) -> list[Effect]:
        """Something that the reader sent is gone: its queries need a new attempt."""
        if reader.name not in self.readers:
            return []
        lost = {query: held.subscriber for (query, _, _), held in reader.held.items()}
        effects: list[Effect] = [
            Send(peer, QueryLost(query=query, reason=reason, culprit=culprit)) for query, peer in lost.items()
        ]
        effects += self._close(reader)
        self._release(reader, lost, now)
        return effects

    # Tuples.

    def answered(self, request: RequestId, answer: Answer, now: Millis) -> list[Effect]:
        reader = self._requests.get(request)
        if reader is None:
            return []
        match answer:
            case Opened():
                reader.is_open = True
                return _indexed(reader, reader.held.values())
            case Rows(batches=batches):
                return self._read(reader, batches, now)
            case Missed(origin=origin, next=upto):
                reader.dispatches.append(Dispatch({origin: upto}))
                reader.read[origin] = upto
                return self._settle(reader, now)
            case Refused():
                return self._lose(reader, f"{answer.error}. {answer.detail}".strip(), now)
        return []

    def _read(self, reader: Reader, batches: tuple[Batch, ...], now: Millis) -> list[Effect]:
        dispatch = Dispatch({batch.origin: batch.next for batch in batches})
        reader.dispatches.append(dispatch)
        try:
            sent = self._carry(reader, dispatch, reader.loads(batches), now)
        except (*MISFITS, TupleTooLarge) as error:
            return self._lose(reader, _why(reader, error), now)
        reader.note(batches)
        return [*sent, *self._settle(reader, now)]

    def _carry(self, reader: Reader, dispatch: Dispatch, loads: Iterable[Load], now: Millis) -> list[Send]:
        sent = self._parcels.carry(reader, dispatch, loads, now)
        for each in sent:
            self._seen_at.setdefault(each.peer, now)
        return sent

    # Receipts.

    def receipt(self, sender: PeerId, receipt: Receipt, now: Millis) -> list[Effect]:
        expect(self._parcels.is_to(sender, receipt.number), "a receipt for a parcel that went to another peer")
        if sender in self._seen_at:
            self._seen_at[sender] = now
        effects: list[Effect] = []
        for reader in list(self.readers.values()):
            if reader.used.get(sender, receipt.life) != receipt.life:
                effects += self._lose(reader, f"peer {sender.short} was restarted", now)
        carried = self._parcels.take(receipt.number)
        if carried is None:  # Its reader is closed, or this is the second receipt.
            return effects
        reader = carried.reader
        if receipt.refused:
            return effects + self._lose(reader, receipt.refused, now)
        reader.used[sender] = receipt.life
        sent = reader.sent.setdefault(sender, {})
        for each in receipt.sent:
            whom = (each.subscriber, each.life)
            sent[whom] = max(sent.get(whom, 0), each.sequence)
        carried.dispatch.parcels -= 1
        return effects + self._settle(reader, now)

    def _settle(self, reader: Reader, now: Millis) -> list[Effect]:
        """Advance past the dispatches that are done, oldest first."""
        passed: dict[Origin, int] = {}
        is_settled = False
        while reader.dispatches and not reader.dispatches[0].parcels:
            done = reader.dispatches.popleft()
            is_settled = True
            for origin, upto in done.passes.items():
                reader.covers[origin] = passed[origin] = max(upto, reader.covers.get(origin, 0))
        if not is_settled:
            return []
        effects: list[Effect] = []
        new = [held for held in reader.joining.values() if held.awaits not in reader.dispatches]
        for held in new:
            held.awaits = None
            del reader.joining[held.name]
        effects += _indexed(reader, new)
        if passed:
            positions = tuple(Position(origin, upto) for origin, upto in passed.items())
            effects.append(self.inside.tell(Seen(subscription=reader.name, positions=positions)))
        if now - reader.reported_at >= REPORT_MS:
            effects += self._report(reader, now)
        return effects

    # Time.

    def sweep(self, now: Millis) -> list[Effect]:
        """End leases, send parcels again, ask evaluators whether they are there, and report to subscribers."""
        effects: list[Effect] = []
        for name, reader in list(self._held_by.items()):
            held = reader.held[name]
            if now - held.leased_at > LEASE_MS:
                reader.lapsed[name[0]] = held.incarnation
                effects += self._forget(name, now)
        effects += self._parcels.again(now)
        effects += self._look_after_evaluators(now)
        effects += self._merge()
        for reader in self.readers.values():
            effects += self._report(reader, now)
        return effects

    def _look_after_evaluators(self, now: Millis) -> list[Effect]:
        used = {peer: None for reader in self.readers.values() for peer in reader.used}
        used |= dict.fromkeys(self._parcels.waiting())
        self._seen_at = {peer: at for peer, at in self._seen_at.items() if peer in used}
        effects: list[Effect] = []
        for peer in list(used):
            if now - self._seen_at.setdefault(peer, now) > SILENT_MS:
                effects += self._lose_with(peer, now)
        for peer, queries in list(self._released.items()):
            self._released[peer] = {query: until for query, until in queries.items() if until > now}
            if not self._released[peer]:
                del self._released[peer]
        self._gone.sweep(now)
        for peer in used | dict.fromkeys(self._released):
            released = tuple(self._released.get(peer, ()))
            effects.append(Send(peer, Parcel(number=0, released=released, counts_on=peer in used)))
        return effects

    def _merge(self) -> list[Effect]:
        """Readers that have come equally far become one."""
        effects: list[Effect] = []
        for other in list(self.readers.values()):
            for reader in self.readers.values():
                if reader is not other and reader.can_take_over(other):
                    reader.take_over(other)
                    self._held_by.update(dict.fromkeys(other.held, reader))
                    effects += _indexed(reader, other.held.values())
                    other.held = {}
                    effects += self._close(other)
                    break
        return effects

    def _lose_with(self, peer: PeerId, now: Millis) -> list[Effect]:
        del self._seen_at[peer]
        self._panel.shun([peer], now)
        waiting = self._parcels.waiting().get(peer, [])
        lost = [reader for reader in self.readers.values() if peer in reader.used or reader in waiting]
        reason = f"peer {peer.short} was silent for {SILENT_MS // 1000} s"
        return [effect for reader in lost for effect in self._lose(reader, reason, now, peer)]

    def _report(self, reader: Reader, now: Millis) -> list[Effect]:
        """One report for each subscriber, however many queries it has here."""
        if not reader.is_open:
            return []
        reader.reported_at = now
        reader.report += 1
        covers = tuple(Position(origin, upto) for origin, upto in reader.covers.items())
        effects: list[Effect] = []
        for whom in reader.subscribers:
            message = Covered(
                reader=reader.name,
                report=reader.report,
                tuples=reader.tuples,
                unfit=reader.unfit,
                messages=reader.messages,
                covers=covers,
                sent=tuple(
                    SentBy(peer, life, reader.sent.get(peer, {}).get(whom, 0)) for peer, life in reader.used.items()
                ),
                forgotten=tuple(query for query, whose in reader.lapsed.items() if whose == whom),
                subscriber_life=whom[1],
            )
            effects.append(Send(whom[0], message))
        return effects

    def holds(self, name: HeldName) -> bool:
        """Whether a side of a query is held here."""
        return name in self._held_by

    def held_for(self, subscriber: PeerId) -> int:
        """How many sides of a peer's queries are."""
        counts = (each.subscribers for each in self.readers.values())
        return sum(number for count in counts for (peer, _), number in count.items() if peer == subscriber)

    def is_empty(self) -> bool:
        """Whether nothing of any query is left."""
        return not self.readers and self._parcels.is_empty() and not self._released

    @property
    def remembers(self) -> bool:
        """Whether it knows of queries that are gone, for a while yet."""
        return len(self._gone) > 0

    def validate(self) -> None:
        assert len(self._held_by) == sum(len(reader.held) for reader in self.readers.values())
        assert self._held_by.keys() == {name for names in self._sides.values() for name in names}
        for reader in self.readers.values():
            assert reader.held, "a reader without queries is closed"
            reader.validate()
        self._parcels.validate(self.readers)


def _why(reader: Reader, error: Exception) -> str:
    """Why a reader cannot go on behind these tuples."""
    if isinstance(error, TupleTooLarge):
        return str(error)
    return f"rows of {reader.at.relation} do not have the columns they had: {error}"


def _indexed(reader: Reader, every: Iterable[Held]) -> list[Effect]:
    """QUERY_INDEXED for those that are in place."""
    return [
        Send(
            held.subscriber,
            QueryIndexed(
                query=held.member.query.id,
                side=held.message.side,
                replica=held.message.replica,
                reader=reader.name,
                report=reader.report + 1,
            ),
        )
        for held in every
        if reader.is_open and held.awaits is None
    ]
