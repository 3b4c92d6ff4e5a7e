"""Clients of a simulated network: they create streams, publish to them and read them, and come back after a crash.

Each behaves as `peerd.client` does: it remembers its own positions, says what it has seen, and retries what was refused
with a retry time. Everything they are told goes to the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from overlay.sim.oracle import Oracle, Publication, Reading, RowNumber
from overlay.sim.peer import EPOCH_MS, SimPeer
from overlay.sim.ranges import IntRange, draw
from overlay.sim.world import World
from protocols.catalogue.messages import CreateStream, DropStream, ShowStream, StreamShown
from protocols.catalogue.streams import Durability, Policy, StreamDefinition
from protocols.clock import Stamp
from protocols.delivery.messages import (
    Batch,
    CloseSubscription,
    DeadLettered,
    DeadLettersListed,
    ListDeadLetters,
    Missed,
    Opened,
    OpenSubscription,
    Origin,
    Position,
    Publish,
    Published,
    Refuse,
    Rows,
    Seen,
)
from protocols.ids import Millis, RequestId, StreamName, SubscriptionId
from protocols.messages import Answer, Done, Refused
from queries.catalogue import DAY_MS
from queries.schema import Schema

SCHEMA: Final = Schema.parse("number int")
DURABILITIES: Final[tuple[Durability, ...]] = ("disk", "replicated", "memory")
RETRY_MS: Final = 300
RECONNECT_MS: Final = 200
LOOK_MS: Final = 5_000
REMOVED_MS_MAX: Final = 20_000  # Whatever is removed in a run is removed within this time after it began.
PATIENCE_MS: Final = 30_000  # A request at a healthy peer should be answered within this.
CUT_OFF_MS_MAX: Final = 500
DEATH_SHARE: Final = 0.3  # Share of the readers that vanish without a word when they go away or cannot process a row.
CUT_OFF_SHARE: Final = 0.05  # Share of the publishes whose client loses its connection before the answer.


class StreamsWorkload(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="streams", tag_field="name"
):
    """How much clients do; ranges are drawn from the seed."""

    streams: IntRange = (2, 4)
    durabilities: tuple[Durability, ...] = DURABILITIES  # Of the streams, in turn.
    lossy_share: float = 0.5  # Share of the `memory` streams that drop the oldest rather than wait.
    dropped_share: float = 0.25  # Share of the streams that somebody removes during the run.
    retention_ms: IntRange = DAY_MS
    publishers: IntRange = (2, 5)
    subscribers: IntRange = (2, 5)
    kept_share: float = 1.0  # Share of the subscriptions that their peer keeps while the client is away.
    closed_share: float = 0.2  # Share of the subscriptions that their client ends; half of them begin anew.
    picky_share: float = 0.25  # Share of the kept ones whose client cannot process some rows.
    poison_every: IntRange = (15, 60)
    rows: IntRange = (1, 4)  # In one publish.
    every_ms: IntRange = (100, 1500)  # How often a publisher publishes.


class _Session:
    """What clients on one machine share: the highest stamp anybody told them."""

    def __init__(self) -> None:
        self.stamp: Stamp = 0

    def witness(self, stamp: Stamp) -> None:
        self.stamp = max(self.stamp, stamp)


class _Creator:
    """Creates one stream, retrying until it exists."""

    def __init__(self, workload: Workload, definition: StreamDefinition) -> None:
        self._workload = workload
        self.name = definition.name
        self.is_done = False
        self._definition = definition
        self._tried = False

    def create(self) -> None:
        peer = self._workload.some_peer()
        if peer is None:
            self._workload.later(RECONNECT_MS, self.create)
        else:
            peer.request(CreateStream(definition=self._definition), self._answered)

    def _answered(self, answer: Answer | None, last: bool) -> None:
        match answer:
            case Done(stamp=stamp):
                self._workload.session.witness(stamp)
                self._done()
            case Refused(code="exists") if self._tried:  # An earlier try took effect.
                self._done()
            case _:
                self._tried = True
                self._workload.later(RETRY_MS, self.create)

    def _done(self) -> None:
        self.is_done = True
        self._workload.created(self._definition)


_Memory = tuple[int, int]


class _Remover:
    """Removes a stream or a subscription, retrying until it is gone."""

    def __init__(
        self, workload: Workload, command: DropStream | CloseSubscription, where: Callable[[], SimPeer | None]
    ) -> None:
        self._workload = workload
        self._command = command
        self._where = where
        self._then: Callable[[], None] = lambda: None
        self.is_done = False

    def __str__(self) -> str:
        return f"{self._command} has not been done"

    def remove(self, then: Callable[[], None] = lambda: None) -> None:
        self._then = then
        peer = self._where()
        if peer is None or not peer.is_up:
            self._workload.later(RECONNECT_MS, self.remove, then)
        else:
            peer.request(self._command, self._answered)

    def _answered(self, answer: Answer | None, last: bool) -> None:
        match answer:
            case Done() | Refused(code="unknown"):  # Or an earlier try took effect, or it was lost with a disk.
                self.is_done = True
                self._then()
            case _:
                self._workload.later(RETRY_MS, self.remove, self._then)


class _PublisherClient:
    """Publishes to one stream at one peer, until a publish is accepted in a calm network.

    It sometimes repeats a publish that was not answered, under the same number: that must take effect once.
    """

    def __init__(self, workload: Workload, stream: StreamName, peer: SimPeer, session: bytes) -> None:
        self.peer = peer
        self.is_content = False
        self._workload = workload
        self._stream = stream
        self._session = session
        self._every_ms = draw(workload.rng, workload.shape.every_ms)
        self._open: dict[RowNumber, Publication] = {}
        workload.later(workload.rng.randrange(self._every_ms), self._publish)

    def complaint(self) -> str | None:
        """What it is still waiting for."""
        patience = self._workload.world.now - PATIENCE_MS
        for publication in self._open.values():
            if publication.asked_at < patience:
                return f"{self.peer!r} has not answered since {publication.asked_at} ms: {publication}"
        what = "still accepts what comes" if self._is_dropped else "accepts nothing"
        return None if self.is_content else f"{self.peer!r} {what} for {self._stream}"

    @property
    def _is_dropped(self) -> bool:
        return self._stream in self._workload.oracle.dropped

    def _publish(self) -> None:
        workload = self._workload
        if self.is_content:
            return
        workload.later(self._every_ms, self._publish)
        if not self.peer.is_up:
            return
        rows = workload.new_rows()
        witness = workload.session.stamp if workload.rng.random() < 0.5 else 0
        publication = Publication(self._stream, self.peer.peer_id, rows, workload.world.now, witness)
        workload.oracle.asked(publication)
        self._open[rows[0]] = publication
        self._ask(publication, self._memory())

    def _ask(self, publication: Publication, memory: _Memory) -> None:
        if not self.peer.is_up:
            self._workload.later(RECONNECT_MS, self._ask, publication, memory)
            return
        if memory != self._memory():  # The peer has forgotten the first try.
            self._give_up(publication)
            return
        publication.asked_at = self._workload.world.now
        rows = publication.rows
        command = Publish(
            stream=self._stream,
            rows=SCHEMA.encode([(row,) for row in rows]),
            count=len(rows),
            witness=publication.witness,
            session=self._session,
            number=rows[0],
        )
        request = self.peer.request(command, lambda answer, last: self._answered(publication, memory, answer))
        if not self._workload.is_calm and self._workload.rng.random() < CUT_OFF_SHARE:
            wait_ms = self._workload.rng.randrange(CUT_OFF_MS_MAX)
            self._workload.later(wait_ms, self._cut_off, request, publication, memory)

    def _cut_off(self, request: RequestId, publication: Publication, memory: _Memory) -> None:
        if self.peer.abandon(request):
            self._answered(publication, memory, None)

    def _answered(self, publication: Publication, memory: _Memory, answer: Answer | None) -> None:
        workload = self._workload
        asks_again = workload.rng.random() < 0.5
        match answer:
            case Published():
                del self._open[publication.rows[0]]
                workload.oracle.accepted(publication, answer, self.peer.clock_off_since)
                workload.session.witness(answer.stamp)
                self.is_content = workload.is_calm and not self._is_dropped
            case Refused(retry_after_ms=wait_ms) if wait_ms and asks_again:
                workload.later(wait_ms, self._ask, publication, memory)
            case Refused(code=code) if publication.is_sure:
                del self._open[publication.rows[0]]
                self.is_content |= self._is_dropped and code == "unknown" and workload.is_calm
                if not self._is_dropped:  # Otherwise it may have been taken, and be gone with its stream.
                    workload.oracle.refused(publication)
            case None if asks_again:
                publication.is_sure = False
                workload.later(RECONNECT_MS, self._ask, publication, memory)
            case _:
                self._give_up(publication)

    def _memory(self) -> _Memory:
        """What a peer remembers publishes by: lost with the disk, or with the life."""
        is_in_memory = self._workload.oracle.durabilities[self._stream] == "memory"
        return self.peer.disks, self.peer.life if is_in_memory else 0

    def _give_up(self, publication: Publication) -> None:
        """It will never be known whether it took effect."""
        del self._open[publication.rows[0]]
        publication.outcome = "unknown"


class _SubscriberClient:
    """Reads one stream at one peer; goes away at times, and comes back."""

    def __init__(self, workload: Workload, reading: Reading, peer: SimPeer) -> None:
        self.peer = peer
        self.reading = reading
        self._workload = workload
        self._request: RequestId | None = None
        self._unseen = False
        self._is_over = False  # It has ended, or its stream has.
        self._is_restless = workload.rng.random() < 0.4
        self._is_kept = workload.rng.random() < workload.shape.kept_share
        self._refused: dict[Origin, tuple[int, RowNumber]] = {}  # Until it comes again, what follows is useless.
        if self._is_kept and workload.oddities.random() < workload.shape.picky_share:
            every = draw(workload.oddities, workload.shape.poison_every)
            reading.refuses = lambda row: row % every == 0
        if self._is_kept:
            workload.later(LOOK_MS, self._look_at_letters)
        workload.later(workload.rng.randrange(3_000), self._open)

    def complaint(self) -> str | None:
        if self.reading.stream in self._workload.oracle.dropped and not self._is_over:
            return f"subscription {self.reading.subscription} has not heard that its stream is gone"
        if self.reading.opened_at >= 0 or self._is_over:
            return None
        return f"subscription {self.reading.subscription} at {self.peer!r} has never been opened"

    def _open(self) -> None:
        workload, reading = self._workload, self.reading
        if self._request is not None or self._is_over:
            return
        if not self.peer.is_up:
            workload.later(RECONNECT_MS, self._open)
            return
        command = OpenSubscription(
            stream=reading.stream,
            subscription=reading.subscription,
            since="now" if reading.opened_at < 0 else reading.stamp,
            positions=reading.where(),
            keep=self._is_kept,
            witness=workload.session.stamp,
        )
        self._refused.clear()
        self._request = self.peer.request(command, self._answered)
        if self._is_restless and not workload.is_calm:
            workload.later(workload.rng.randrange(500, 15_000), self._leave, self._request)

    def _leave(self, request: RequestId) -> None:
        if request == self._request:
            self._go_away(is_broken=self._workload.oddities.random() < DEATH_SHARE)
            self._workload.later(self._workload.rng.randrange(5_000), self._open)

    def end(self) -> None:
        """End the subscription; perhaps another one of the same name begins afterwards."""
        if self._is_over or self.reading.opened_at < 0 or self.reading.stream in self._workload.oracle.dropped:
            return
        self._is_over = self.reading.excused = True
        if self._request is not None:
            self._go_away(is_broken=False)
        self._workload.end(self.reading, self.peer)

    def _go_away(self, *, is_broken: bool) -> None:
        assert self._request is not None
        request, self._request = self._request, None
        self.reading.deaths += is_broken
        self.peer.abandon(request, is_broken=is_broken)

    def _answered(self, answer: Answer | None, last: bool) -> None:
        oracle, reading = self._workload.oracle, self.reading
        match answer:
            case Opened(stamp=stamp):
                oracle.opened(reading, stamp, self._workload.world.now)
                self._workload.session.witness(stamp)
            case Rows(batches=batches):
                for batch in batches:
                    if self._request is not None:
                        self._process(batch)
                self._see_later()
            case DeadLettered(origin=origin, sequence=sequence):
                oracle.put_aside(reading, origin, sequence, self._refused.pop(origin, None))
            case Missed(origin=origin) if not self._comes_too_early(origin, answer.first):
                oracle.missed(reading, answer, self._workload.world.now + EPOCH_MS)
                self._see_later()
        if last:
            self._request = None
            is_gone = isinstance(answer, Refused) and answer.code == "unknown"
            self._is_over = is_gone and self.reading.stream in self._workload.oracle.dropped
            self._workload.later(RETRY_MS, self._open)

    def _process(self, batch: Batch) -> None:
        """Process rows one by one, up to one that this client cannot process: it refuses it, or dies."""
        origin, reading = batch.origin, self.reading
        if self._comes_too_early(origin, batch.first):
            return
        for sequence, (row,) in enumerate(SCHEMA.decode(batch.rows), start=batch.first):
            if not reading.refuses(row):
                self._workload.oracle.received(reading, origin, sequence, row)
                continue
            if self._workload.oddities.random() < DEATH_SHARE:
                self._go_away(is_broken=True)
                self._workload.later(RECONNECT_MS, self._open)
            else:
                self._refused[origin] = sequence, row
                name = reading.subscription
                refuse = Refuse(subscription=name, origin=origin, first=sequence, next=sequence + 1, reason="no")
                self.peer.tell(refuse)
            return

    def _comes_too_early(self, origin: Origin, first: int) -> bool:
        """Whether this was sent before the peer heard that an earlier row must come again."""
        if origin in self._refused and first > self._refused[origin][0]:
            return True
        self._refused.pop(origin, None)
        return False

    def _look_at_letters(self) -> None:
        self._workload.later(LOOK_MS, self._look_at_letters)
        if self.peer.is_up and self.reading.opened_at >= 0 and not self._is_over:
            name, disks = self.reading.subscription, self.peer.disks
            command = ListDeadLetters(stream=self.reading.stream, subscription=name)
            self.peer.request(command, lambda answer, last: self._letters(answer, disks))

    def _letters(self, answer: Answer | None, disks: int) -> None:
        is_over = self._is_over or self.reading.stream in self._workload.oracle.dropped  # Its dead letters go with it.
        if isinstance(answer, DeadLettersListed) and disks == self.peer.disks and not is_over:
            letters = [letter for each in answer.subscriptions for letter in each.letters]
            listed = [(each.batch.origin, SCHEMA.decode(each.batch.rows)[0][0]) for each in letters]
            self._workload.oracle.letters(self.reading, listed)

    def _see_later(self) -> None:
        """Say what has been seen: soon, or much later and all at once."""
        if not self._unseen:
            self._unseen = True
            self._workload.later(self._workload.rng.choice((1, 20, 400)), self._see)

    def _see(self) -> None:
        self._unseen = False
        if self._request is not None and self.peer.is_up:
            positions = tuple(Position(origin, upto) for origin, upto in self.reading.positions.items())
            self.peer.tell(Seen(subscription=self.reading.subscription, positions=positions))


class _Looker:
    """Looks at the counters of a stream from time to time."""

    def __init__(self, workload: Workload, stream: StreamName) -> None:
        self.stream = stream
        self._workload = workload
        self.shown_at: Millis = -1
        workload.later(workload.rng.randrange(LOOK_MS), self._look)

    def _look(self) -> None:
        self._workload.later(LOOK_MS, self._look)
        peer = self._workload.some_peer()
        if peer is not None:
            peer.request(ShowStream(name=self.stream), self._answered)

    def _answered(self, answer: Answer | None, last: bool) -> None:
        if isinstance(answer, StreamShown):
            self.shown_at = self._workload.world.now
            self._workload.oracle.shown(answer)
        elif isinstance(answer, Refused) and self.stream in self._workload.oracle.dropped:
            self.shown_at = self._workload.world.now


class Workload:
    """All clients of one run."""

    def __init__(self, world: World, shape: StreamsWorkload) -> None:
        self.world = world
        self.shape = shape
        self.oracle = Oracle()
        self.rng = world.rng("workload")
        self.oddities = world.rng("oddities")
        self.session = _Session()
        self.is_calm = False
        self._calm_since: Millis = 0
        self._rows = 0
        self._publishers: list[_PublisherClient] = []
        self._subscribers: list[_SubscriberClient] = []
        self._lookers: list[_Looker] = []
        self._removers: list[_Remover] = []
        definitions = [self._define(number) for number in range(draw(self.rng, shape.streams))]
        self._creators = [_Creator(self, definition) for definition in definitions]
        world.on_crash(self._crashed)

    def begin(self) -> None:
        for creator in self._creators:
            self.later(self.rng.randrange(2_000), creator.create)

    def calm(self) -> None:
        """The faults are over: readers stay, publishers publish until something is accepted."""
        self.is_calm = True
        self._calm_since = self.world.now

    def due(self) -> list[str]:
        """What is still missing."""
        missing = [f"{each.name} has not been created" for each in self._creators if not each.is_done]
        missing += [complaint for client in self._publishers if (complaint := client.complaint())]
        missing += [complaint for client in self._subscribers if (complaint := client.complaint())]
        missing += [str(remover) for remover in self._removers if not remover.is_done]
        missing += [f"{each.stream} has not been shown" for each in self._lookers if each.shown_at < self._calm_since]
        return missing + self.oracle.due()

    def _define(self, number: int) -> StreamDefinition:
        durability = self.shape.durabilities[number % len(self.shape.durabilities)]
        retention_ms = draw(self.rng, self.shape.retention_ms)
        name = f"stream-{number}"
        is_lossy = durability == "memory" and self.oddities.random() < self.shape.lossy_share
        policy: Policy = "drop-oldest" if is_lossy else "block"
        return StreamDefinition(
            name=name, schema=SCHEMA, durability=durability, retention_ms=retention_ms, policy=policy
        )

    def _crashed(self, peer: SimPeer, with_disk: bool) -> None:
        self.oracle.crashed(peer.peer_id, with_disk=with_disk)
        # The subscription was lost with the disk, and a `memory` stream keeps nothing for unknown readers.
        if with_disk:
            for client in self._subscribers:
                if client.peer is peer:
                    self.oracle.lose_letters(client.reading)
                if client.peer is peer and self.oracle.durabilities[client.reading.stream] == "memory":
                    client.reading.excused = True

    # What clients ask of it.

    def later(self, wait_ms: Millis, action: Callable[..., None], *arguments: object) -> None:
        self.world.agenda.after(wait_ms, action, *arguments)

    def new_rows(self) -> tuple[int, ...]:
        count = draw(self.rng, self.shape.rows)
        first, self._rows = self._rows, self._rows + count
        return tuple(range(first, first + count))

    def some_peer(self) -> SimPeer | None:
        up = [peer for peer in self.world.peers if peer.is_up]
        return self.rng.choice(up) if up else None

    def created(self, definition: StreamDefinition) -> None:
        stream = definition.name
        self.oracle.durabilities[stream] = definition.durability
        self.oracle.retentions_ms[stream] = definition.retention_ms
        for peer in self.rng.choices(self.world.peers, k=draw(self.rng, self.shape.publishers)):
            session = f"{stream}/writer-{len(self._publishers)}".encode()
            self._publishers.append(_PublisherClient(self, stream, peer, session))
        for peer in self.rng.choices(self.world.peers, k=draw(self.rng, self.shape.subscribers)):
            self._subscribe(f"{stream}/reader-{len(self._subscribers)}", stream, peer)
        if self.oddities.random() < self.shape.dropped_share:
            self.later(self.oddities.randrange(REMOVED_MS_MAX), self._drop, stream)
        self._lookers.append(_Looker(self, stream))

    def _subscribe(self, name: SubscriptionId, stream: StreamName, peer: SimPeer) -> None:
        reading = Reading(name, stream)
        self.oracle.readings.append(reading)
        client = _SubscriberClient(self, reading, peer)
        self._subscribers.append(client)
        if self.oddities.random() < self.shape.closed_share:
            self.later(self.oddities.randrange(REMOVED_MS_MAX), client.end)

    # What comes to its end.

    def _drop(self, stream: StreamName) -> None:
        if not self.is_calm:
            self.oracle.dropped[stream] = None
            remover = _Remover(self, DropStream(name=stream, force=True), self.some_peer)
            self._removers.append(remover)
            remover.remove()

    def end(self, reading: Reading, peer: SimPeer) -> None:
        """A subscription ends; half of the names are used again."""
        remover = _Remover(self, CloseSubscription(subscription=reading.subscription), lambda: peer)
        self._removers.append(remover)
        again = (self._subscribe, reading.subscription, reading.stream, peer)
        remover.remove(lambda: self.later(RETRY_MS, *again) if self.oddities.random() < 0.5 else None)
