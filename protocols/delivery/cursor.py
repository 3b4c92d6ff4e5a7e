"""The cursor of one subscription at its peer: how far the client has read, and which tuples wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from protocols.catalogue.events import PublisherEntry, SubscriberEntry
from protocols.catalogue.shares import WHOLE, PublisherShare
from protocols.catalogue.streams import READS_ALL, Reads
from protocols.clock import Stamp
from protocols.delivery.dead_letters import DeadLetters, Doubts
from protocols.delivery.messages import (
    Ack,
    Batch,
    DeadLettersListed,
    Heeded,
    ListDeadLetters,
    OpenSubscription,
    Origin,
    Position,
    Publishers,
    Subscribe,
    Subscribed,
    SubscriptionLetters,
    SubscriptionOpened,
)
from protocols.delivery.needs import Needs
from protocols.delivery.relaying import Relaying
from protocols.effects import Effect, Reply, Send
from protocols.ids import Millis, PeerId, RequestId, StreamName, SubscriptionId
from protocols.limits import Limits


@dataclass(slots=True)
class Cursor:
    """One reader of a stream."""

    subscription: SubscriptionId
    stream: StreamName
    since: Stamp
    keep: bool
    share: PublisherShare = WHOLE  # The publishers it reads from.
    created_at: Stamp = 0  # When the stream was created that it reads; 0: not known yet.
    request: RequestId | None = None  # The client that reads now.
    is_journalled: bool = False  # It was found once, so a failed lookup now means out of sight, not gone.
    closers: list[RequestId] = field(default_factory=list)  # Who asked to remove it, and waits until it is unlisted.
    is_open: bool = False  # Listed, and the client has been told.
    advertised_at: Millis = 0
    seen: dict[Origin, int] = field(default_factory=dict)  # The client has processed everything below.
    taken: dict[Origin, int] = field(default_factory=dict)  # Below: handed to the client, or held for it.
    held: deque[Batch] = field(default_factory=deque)  # For a client that is slower than the network.
    unseen: deque[tuple[Origin, int, int]] = field(default_factory=deque)  # Origin, next sequence, bytes.
    unseen_bytes: int = 0
    publishers: dict[Origin, PublisherEntry] = field(default_factory=dict)
    served_by: dict[Origin, PeerId] = field(default_factory=dict)
    # Origins that their ingress peer cannot serve: ask the backup.
    absent: dict[Origin, None] = field(default_factory=dict)
    # Origins that their publisher says it no longer keeps: nothing is added to them.
    over: dict[Origin, None] = field(default_factory=dict)
    reads: Reads = READS_ALL
    heartbeats: bool = False  # The client goes by the time of publishers,
    introduced: Publishers | None = None  # and was told of these.
    # Where each origin is served from, for a client that wants to know.
    placed: dict[Origin, int] | None = None
    heard_of: Stamp = 0  # The latest time that a tuple or a heartbeat has told.
    needs: Needs | None = None  # What the client needs, if that is not everything.
    relaying: Relaying | None = None  # It may read from other hosts.
    guests: int = 0  # So many peers read from the client.
    readers_listed: int = 0  # So many peers read the stream.
    copies_asked: dict[PeerId, dict[Origin, None]] = field(default_factory=dict)  # Of whom, but for the publisher.
    heeded: dict[tuple[PeerId, bool], int] = field(default_factory=dict)  # Which version of it each server heeds.
    floors: dict[Origin, int] = field(default_factory=dict)  # No tuple to come is sieved by an earlier version.
    floors_told: dict[Origin, int] = field(default_factory=dict)
    # Peers asked since this client came, and whether for copies.
    told: dict[tuple[PeerId, bool], None] = field(default_factory=dict)
    asked: dict[tuple[PeerId, bool], None] = field(default_factory=dict)  # The same, ever.
    doubts: Doubts = field(default_factory=Doubts)
    trial: Batch | None = None  # The single tuple that the client is tried on now.
    is_burying: bool = False  # A dead letter is being written; nothing behind it is handed out until it is on disk.
    dead: DeadLetters = field(default_factory=DeadLetters)

    def attach(self, request: RequestId, command: OpenSubscription) -> None:
        """A client begins to read, from the first tuple that it has not seen."""
        self.request, self.reads, self.needs = request, command.reads, command.needs
        for each in (self.heeded, self.floors, self.floors_told):
            each.clear()
        self.taken = dict(self.seen)
        self.held.clear()
        self.unseen.clear()
        self.unseen_bytes = 0
        self.told.clear()
        self.introduced = None
        self.trial = None
        self.placed = {} if command.places else None
        self.relaying = Relaying() if command.relays else None

    def means(self, created_at: Stamp) -> bool:
        """Whether it reads the stream that was created then, and no other of this name."""
        self.created_at = self.created_at or created_at
        return created_at in (0, self.created_at)

    def place(self, origins: Iterable[Origin]) -> tuple[Position, ...]:
        """Where reading begins at these origins, of those that the client does not know yet."""
        if self.placed is None:
            return ()
        new = {origin: self.taken[origin] for origin in origins if origin not in self.placed}
        self.placed |= new
        return tuple(Position(origin, upto) for origin, upto in new.items())

    def entry(self, peer: PeerId) -> SubscriberEntry:
        """What the catalogue is to tell of this reader."""
        return SubscriberEntry(
            subscription=self.subscription,
            peer=peer,
            share=self.share,
            heartbeats=self.heartbeats,
            kept=self.keep,
            reads=self.reads,
            depth=self.relaying.depth if self.relaying is not None else 0,
            readers=self.guests,
        )

    def position(self, origin: Origin) -> Position:
        upto = self.seen[origin]
        return Position(origin, upto, tuple(each for each in self.dead.told(origin) if each < upto))

    def positions_at(self, origins: list[Origin]) -> tuple[Position, ...]:
        return tuple(self.position(origin) for origin in origins if origin in self.seen)

    def record(self, *, ended: bool = False) -> SubscriptionOpened:
        """What the journal says of it."""
        return SubscriptionOpened(
            subscription=self.subscription,
            stream=self.stream,
            since=self.since,
            ended=ended,
            share=self.share,
            created_at=self.created_at,
        )

    def acks(self, moved: list[Position]) -> list[Effect]:
        """Tell whoever serves these origins how far they have been seen."""
        by_peer: dict[PeerId, list[Position]] = {}
        for position in moved:
            peer = self.served_by.get(position.origin, position.origin.publisher)
            if self.relaying is not None:
                peer = self.relaying.at.get(position.origin, peer)
            by_peer.setdefault(peer, []).append(position)
        return [
            Send(peer, Ack(subscription=self.subscription, positions=tuple(group))) for peer, group in by_peer.items()
        ]

    # What the client gets.

    def introduce(self) -> list[Effect]:
        """Tell a client that goes by the time of publishers whom there is to wait for."""
        kept = (origin for origin, entry in self.publishers.items() if origin not in self.over or entry.backup)
        news = Publishers(origins=tuple(kept), over=tuple(self.over))
        if not self.heartbeats or self.request is None or news == self.introduced:
            return []
        self.introduced = news
        return [Reply(self.request, news, last=False)]

    def hand_out(self, bytes_max: int) -> list[Batch]:
        """The batches to hand to the client now. Of tuples in doubt, only as many as help to find the culprit."""
        batches: list[Batch] = []
        while self.held and self.unseen_bytes < bytes_max and not self.is_burying:
            if self.doubts and self.unseen:
                break
            batch = self.held.popleft()
            portion = self.doubts.portion(batch.origin, batch.first)
            if portion is not None and portion < batch.count:
                self.held.appendleft(tail(batch, batch.first + portion))
                batch = _head(batch, portion)
            self.trial = batch if portion == 1 else None
            self.unseen.append((batch.origin, batch.next, len(batch.rows)))
            self.unseen_bytes += len(batch.rows)
            batches.append(batch)
        return batches

    def see(self, positions: tuple[Position, ...]) -> list[Position]:
        """The client has processed these; returns the positions that are new."""
        moved: list[Position] = []
        for position in positions:
            origin = position.origin
            upto = min(position.next, self.taken.get(origin, 0))
            if upto > self.seen.get(origin, 0):
                self.seen[origin] = upto
                self.doubts.passed(origin, upto)
                moved.append(self.position(origin))
                if self.trial is not None and self.trial.origin == origin:
                    self.trial = None
        while self.unseen:
            origin, upto, size = self.unseen[0]
            if upto > self.seen.get(origin, 0):
                break
            self.unseen.popleft()
            self.unseen_bytes -= size
        return moved

    def in_hand(self) -> dict[Origin, int]:
        """For each origin, up to where the client holds tuples."""
        return {origin: upto for origin, upto, _ in self.unseen}

    def take_back(self, origin: Origin) -> None:
        """Hand out again what the client holds of an origin, and everything that waits behind it."""
        kept = [each for each in self.unseen if each[0] != origin]
        self.unseen = deque(kept)
        self.unseen_bytes = sum(size for _, _, size in kept)
        if self.trial is not None and self.trial.origin == origin:
            self.held.appendleft(self.trial)
            return
        self.held = deque(batch for batch in self.held if batch.origin != origin)
        self.taken[origin] = self.seen.get(origin, 0)

    def skip(self, origin: Origin, upto: int) -> None:
        """The client could not process the tuple that ends here: skip it; nothing else is in doubt."""
        self.seen[origin] = max(upto, self.seen.get(origin, 0))
        self.taken[origin] = max(upto, self.taken.get(origin, 0))
        self.doubts.found()
        self.trial = None
        for batch in [each for each in self.held if each.origin == origin and each.first < upto]:
            place = self.held.index(batch)
            if batch.next <= upto:
                del self.held[place]
            else:
                self.held[place] = tail(batch, upto)
        self.see(())

    # Who serves it.

    def ask(self, peer: PeerId, copies: bool) -> bool:
        """Note that a peer is asked for its own tuples, or for copies; whether that is new since this client came."""
        is_new = (peer, copies) not in self.told
        self.told[peer, copies] = self.asked[peer, copies] = None
        return is_new

    def question(
        self, peer: PeerId, origins: list[Origin], copies: bool, credit: int, *, is_here: bool, depth: int = 0
    ) -> Subscribe:
        """SUBSCRIBE for a server. Needs are told until they are heeded; our own peer need not heed them."""
        is_first = self.ask(peer, copies)
        if copies:
            self.copies_asked.setdefault(peer, {}).update(dict.fromkeys(origins))
        is_news = self.needs is not None and self.heeded.get((peer, copies)) != self.needs.version
        return Subscribe(
            subscription=self.subscription,
            stream=self.stream,
            positions=self.positions_at(origins),
            since=self.since,
            credit=credit if self.request is not None else 0,
            copies_of=tuple(origins) if copies else (),
            restart=is_first,
            heartbeats=self.heartbeats,
            witness=self.heard_of,
            any_version=True,
            needs=self.needs if (is_first or is_news) and not is_here else None,
            depth=depth,
        )

    def forget_asked(self, peer: PeerId) -> None:
        """A relay is not asked any more: what is still on its way from there is of no use."""
        self.told.pop((peer, True), None)
        self.heeded.pop((peer, True), None)
        self.copies_asked.pop(peer, None)

    def hear(self, sender: PeerId, message: Subscribed) -> list[Effect]:
        """Note which needs a server heeds. It may not know any: then nothing is left out."""
        if self.needs is None or self.request is None:
            return []
        effects: list[Effect] = []
        heeded = message.heeded or ((0, 0),) * len(message.positions)
        for position, (version, since) in zip(message.positions, heeded, strict=True):
            origin = position.origin
            self.heeded[sender, origin.publisher != sender] = version
            floor = version or self.needs.version
            if self.taken.get(origin, 0) < since or floor > self.needs.version:
                continue
            self.floors[origin] = max(floor, self.floors.get(origin, 0))
            if not self.held and self.floors[origin] > self.floors_told.get(origin, 0):
                self.floors_told[origin] = self.floors[origin]
                effects.append(Reply(self.request, Heeded(origin=origin, version=self.floors[origin]), last=False))
        return effects

    def accepts(self, batch: Batch) -> bool:
        """Whether a batch is sieved by needs that still hold. If it is not, it comes again."""
        if batch.sieved is None:
            return True
        if self.needs is None or not self.floors.get(batch.origin, 0) <= batch.sieved.by <= self.needs.version:
            return False
        self.floors[batch.origin] = batch.sieved.by
        return True

    def may_say(self, sender: PeerId, origin: Origin) -> bool:
        """Whether a peer may say that an origin is silent: its publisher, a relay, or a backup once it is over."""
        is_relay = self.relaying is not None and self.relaying.at.get(origin) == sender
        return sender == origin.publisher or is_relay or origin in self.over

    def is_served(self, sender: PeerId, origins: Iterable[Origin]) -> bool:
        """Whether these tuples may come from a peer: from their publisher, or from a backup, once it was asked."""
        return all(
            (
                (sender, False) in self.asked
                if origin.publisher == sender
                else origin in self.copies_asked.get(sender, ())
            )
            and origin.stream == self.stream
            and self.share.has(origin.publisher)
            for origin in origins
        )

    def validate(self) -> None:
        assert self.unseen_bytes == sum(size for _, _, size in self.unseen)
        for origin, upto in self.seen.items():
            assert upto <= self.taken.get(origin, upto)
        self.doubts.validate()


def _head(batch: Batch, count: int) -> Batch:
    """The first tuples of a batch."""
    rows = msgspec.msgpack.decode(batch.rows, type=list[msgspec.Raw])[:count]
    return Batch(batch.origin, batch.first, count, batch.published_at, msgspec.msgpack.encode(rows))


def tail(batch: Batch, first: int) -> Batch:
    """What a batch holds from a sequence on."""
    rows = msgspec.msgpack.decode(batch.rows, type=list[msgspec.Raw])
    if batch.sieved is not None:
        sieved = batch.sieved.since(first - batch.first)
        kept = msgspec.msgpack.encode(rows[len(rows) - len(sieved.skipped) :])
        return Batch(batch.origin, first, batch.next - first, batch.published_at, kept, sieved)
    rows = rows[first - batch.first :]
    return Batch(batch.origin, first, len(rows), batch.published_at, msgspec.msgpack.encode(rows))


def dead_letters(
    cursors: Mapping[SubscriptionId, Cursor], command: ListDeadLetters, limits: Limits
) -> DeadLettersListed:
    """The dead letters of one subscription of a stream, or the newest of all of them."""
    bytes_max = limits.dead_letter_bytes_max if command.subscription else limits.message_bytes
    return DeadLettersListed(
        subscriptions=tuple(
            SubscriptionLetters(name, each.dead.count, each.dead.newest(bytes_max))
            for name, each in sorted(cursors.items())
            if each.stream == command.stream and command.subscription in ("", name)
        )
    )
