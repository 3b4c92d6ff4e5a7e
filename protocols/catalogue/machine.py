"""The catalogue of streams: what there is, who publishes to it, who reads it; kept in the replicated store.

Under a stream's key lie its definition and the advertisements of its publishers and subscribers. A directory of a few
keys holds the names of all streams, for listing and for guessing what a mistyped name meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

import msgspec

from protocols.catalogue.altering import Altering
from protocols.catalogue.custody import CUSTODY, CustodyBook
from protocols.catalogue.entries import (
    ALTERATION,
    DEFINITION,
    DEFINITIONS,
    DERIVED,
    claim_item,
    encode,
    problem_with,
    publisher_item,
    stream_in,
    value_of,
)
from protocols.catalogue.events import (
    Advertised,
    AdvertiseFailed,
    DerivedEntry,
    LookupFailed,
    PublisherEntry,
    QueryEntry,
    StreamFound,
    StreamRemoved,
    SubscriberEntry,
)
from protocols.catalogue.messages import (
    AlterStream,
    CreateStream,
    DerivedListed,
    DropStream,
    ListDerived,
    ListStreams,
    PublisherShown,
    ShowStream,
    StreamShown,
    StreamsListed,
)
from protocols.catalogue.queries import QueryDirectory
from protocols.catalogue.refusals import altering_already, still_read, unanswered, unknown_stream
from protocols.catalogue.shards import Step, read_shards, shard_of
from protocols.catalogue.streams import Alteration, StreamDefinition, stream_key
from protocols.clock import HybridClock
from protocols.effects import Effect, Reply, Tell
from protocols.events import Event, Requested
from protocols.ids import Key, Millis, PeerId, RequestId, StreamName, SubscriptionId
from protocols.inside import Inside
from protocols.messages import Done, Refused
from protocols.role import Owned
from protocols.store.entries import Entry
from protocols.store.events import StoreFailed, StoreRead, StoreWritten, Token
from protocols.store.machine import StoreMachine

ROLE: Final = "catalogue"
TYPOS_MAX: Final = 3  # Letters by which a mistyped name may be longer or shorter.
COMPARED_MAX: Final = 500  # Names of streams with a mistyped one.
_CLAIM_GONE_MS: Final = 24 * 3600 * 1000  # So long it is remembered that a dropped stream has none.


@dataclass(slots=True)
class CatalogueMachine:
    """Streams by name, at one peer.

    In:        CREATE_STREAM, ALTER_STREAM, DROP_STREAM, LIST_STREAMS, SHOW_STREAM; lookup() and advertise…() of roles
    Out:       Done, Refused, STREAMS, STREAM; StreamFound, LookupFailed, Advertised, AdvertiseFailed
    Keeps:     only what is under way; the store keeps the rest
    """

    owned: ClassVar[Owned] = Owned(
        ROLE, commands=(CreateStream, AlterStream, DropStream, ListStreams, ListDerived, ShowStream)
    )

    peer_id: PeerId
    store: StoreMachine
    clock: HybridClock
    queries: QueryDirectory = field(init=False)
    custody: CustodyBook = field(init=False)
    _steps: dict[int, Step] = field(default_factory=dict)
    _next_step: int = 0
    _altering: dict[StreamName, Altering] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queries = QueryDirectory(self._read, self._write)
        self.custody = CustodyBook(self.peer_id, self.clock, self._read, self._write)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Requested(request=request, command=CreateStream() as command):
                return self._create(request, command.definition, now)
            case Requested(request=request, command=AlterStream() as command):
                return self._alter(request, command, now)
            case Requested(request=request, command=DropStream() as command):
                return self._drop(request, command, now)
            case Requested(request=request, command=ListStreams()):
                return self._list(request, now)
            case Requested(request=request, command=ListDerived()):
                return self._list_derived(request, now)
            case Requested(request=request, command=ShowStream() as command):
                return self._show(request, command, now)
            case StoreRead() | StoreWritten() | StoreFailed():
                step = self._steps.pop(int(event.token[1]), None)
                return step(event, now) if step else []
        return []

    def validate(self) -> None:
        """State what must hold between any two events."""
        assert all(step <= self._next_step for step in self._steps)

    # For the other roles of this peer.

    def lookup(self, name: StreamName, token: Token, now: Millis, *, guess: bool = False) -> list[Effect]:
        """Find a stream; answered with StreamFound or LookupFailed.

        `guess` reads the whole directory for the name that was meant, if there is no such stream.
        """

        def found(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [Tell(LookupFailed(token, name, event.reason))]
            assert isinstance(event, StoreRead)
            answer = stream_in(event.entries, name, token)
            if answer.definition is not None:
                return [Tell(answer)]
            if answer.is_dropped or not guess:
                return [Tell(answer)]
            return self._read_directory(lambda streams, _: [Tell(_not_found(name, token, streams))], now)

        return self._read(stream_key(name), found, now)

    def advertise_publisher(
        self, name: StreamName, entry: PublisherEntry, expires_in_ms: Millis, token: Token, now: Millis
    ) -> list[Effect]:
        """State that a peer publishes to a stream; answered with Advertised or AdvertiseFailed."""
        item = publisher_item(entry.peer, entry.epoch)
        return self._advertise(name, item, encode(entry), expires_in_ms, token, now)

    def advertise_subscriber(
        self, name: StreamName, entry: SubscriberEntry, expires_in_ms: Millis, token: Token, now: Millis
    ) -> list[Effect]:
        """State that a subscription reads a stream; answered with Advertised or AdvertiseFailed."""
        item = f"subscriber/{entry.subscription}"
        return self._advertise(name, item, encode(entry), expires_in_ms, token, now)

    def withdraw_publisher(
        self, name: StreamName, peer: PeerId, epoch: Millis, expires_in_ms: Millis, token: Token, now: Millis
    ) -> list[Effect]:
        """Take it back; this and the other withdrawals are remembered as long as what was advertised could be."""
        return self._advertise(name, publisher_item(peer, epoch), None, expires_in_ms, token, now)

    def withdraw_subscriber(
        self, name: StreamName, subscription: SubscriptionId, expires_in_ms: Millis, token: Token, now: Millis
    ) -> list[Effect]:
        return self._advertise(name, f"subscriber/{subscription}", None, expires_in_ms, token, now)

    def _advertise(
        self, name: StreamName, item: str, value: bytes | None, expires_in_ms: Millis, token: Token, now: Millis
    ) -> list[Effect]:
        return self._write(stream_key(name), item, value, expires_in_ms, _told(token), now)

    def advertise_derived(self, entry: DerivedEntry, expires_in_ms: Millis, token: Token, now: Millis) -> list[Effect]:
        """State that a part of a query makes a stream; answered with Advertised or AdvertiseFailed."""
        key, item = _derived_place(entry)
        return self._write(key, item, encode(entry), expires_in_ms, _told(token), now)

    def withdraw_derived(self, entry: DerivedEntry, expires_in_ms: Millis, token: Token, now: Millis) -> list[Effect]:
        key, item = _derived_place(entry)
        return self._write(key, item, None, expires_in_ms, _told(token), now)

    # For clients.

    def _create(self, request: RequestId, definition: StreamDefinition, now: Millis) -> list[Effect]:
        """Read, write, and read again: if two clients create one name at once, the loser is told."""
        name = definition.name
        problem = problem_with(definition)
        if definition.query and Inside.is_client(request):
            problem = "only a query makes the stream of its results"
        if problem:
            return [Reply(request, Refused(code="invalid", error=f'stream "{name}": {problem}'))]
        if definition.query:
            return self._create_own(request, definition, now)
        mine = msgspec.structs.replace(definition, created_at=self.clock.tick(now))

        def first_look(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [Reply(request, unanswered(name, event.reason))]
            assert isinstance(event, StoreRead)
            there = stream_in(event.entries, name, ()).definition
            if there is not None:  # Its creator may have crashed before it wrote the directory.
                exists = _exists(request, name)
                return self._write(shard_of("streams", name), name, encode(there), 0, lambda *_: [exists], now)
            return self._write(stream_key(name), DEFINITION, encode(mine), 0, written, now)

        def written(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [Reply(request, unanswered(name, event.reason))]
            assert isinstance(event, StoreWritten)
            replicas = event.replicas
            return self._read(stream_key(name), lambda event, now: second_look(event, now, replicas), now)

        def second_look(event: Event, now: Millis, replicas: int) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [Reply(request, unanswered(name, event.reason))]
            assert isinstance(event, StoreRead)
            if stream_in(event.entries, name, ()).definition != mine:
                return [_exists(request, name)]
            listed = self._finish(request, name, replicas)
            return self._write(shard_of("streams", name), name, encode(mine), 0, listed, now)

        return self._read(stream_key(name), first_look, now)

    def _create_own(self, request: RequestId, mine: StreamDefinition, now: Millis) -> list[Effect]:
        """Create the stream of a query's results: its name is unique, so nothing has to be read first.

        A reader that knows the name finds the definition directly; the directory serves only those who list streams.
        """

        def defined(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [Reply(request, unanswered(mine.name, event.reason))]
            assert isinstance(event, StoreWritten)
            return [Reply(request, Done(stamp=self.clock.tick(now), replicas=event.replicas))]

        effects = self._write(stream_key(mine.name), DEFINITION, encode(mine), 0, defined, now)
        return effects + self._write(shard_of("streams", mine.name), mine.name, encode(mine), 0, lambda *_: [], now)

    def _alter(self, request: RequestId, command: AlterStream, now: Millis) -> list[Effect]:
        """Add or drop a column: read, claim the next version, and read again, until it is decided (`altering.py`)."""
        name = command.name
        if name in self._altering:  # Two alterations of one peer would share its claim.
            return [Reply(request, altering_already(name))]
        mine = Alteration(asked_at=self.clock.tick(now), asked_by=self.peer_id, adds=command.adds, drops=command.drops)
        self._altering[name] = Altering(self.peer_id, self.clock, name, mine)

        def step(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return end(unanswered(name, event.reason))
            if isinstance(event, StoreWritten):
                return self._read(stream_key(name), step, now)
            assert isinstance(event, StoreRead)
            altering = self._altering[name]
            match altering.read(event.entries, now):
                case Refused() as refusal:
                    return end(refusal)
                case None:
                    return self._refuse_unknown(request, name, now) + end(None)
                case StreamDefinition() as definition:
                    listed = self._finish(request, name, altering.replicas)
                    return self._write(shard_of("streams", name), name, encode(definition), 0, listed, now) + end(None)
                case (version, claim):
                    assert altering.created_at is not None
                    item = claim_item(altering.created_at, version, self.peer_id)
                    return self._write(stream_key(name), item, encode(claim), 0, wrote, now)

        def wrote(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreWritten):
                self._altering[name].replicas = event.replicas
            return step(event, now)

        def end(refusal: Refused | None) -> list[Effect]:
            del self._altering[name]
            return [Reply(request, refusal)] if refusal is not None else []

        return self._read(stream_key(name), step, now)

    def _drop(self, request: RequestId, command: DropStream, now: Millis) -> list[Effect]:
        """Remove a stream; unless forced only if nobody reads it.

        A query that begins meanwhile loses its stream, and says so as any other that lost one does.
        """
        name = command.name

        def looked(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [Reply(request, unanswered(name, event.reason))]
            assert isinstance(event, StoreRead)
            there = stream_in(event.entries, name, ())
            # Whoever removed it may have crashed before it wrote the directory.
            if there.definition is None:
                return self._write(
                    shard_of("streams", name),
                    name,
                    None,
                    0,
                    lambda _, now: self._refuse_unknown(request, name, now),
                    now,
                )
            claims = [each.item for each in event.entries if each.item.startswith((ALTERATION, CUSTODY))]
            if command.force:
                return remove(claims, now)
            return self.queries.each(lambda found, now: checked(there, claims, found, now), now)

        def remove(claims: list[str], now: Millis) -> list[Effect]:
            key = stream_key(name)
            void = [
                effect for item in claims for effect in self._write(key, item, None, _CLAIM_GONE_MS, lambda *_: [], now)
            ]
            return void + self._write(key, DEFINITION, None, 0, removed, now)

        def checked(
            there: StreamFound, claims: list[str], found: tuple[QueryEntry, ...] | None, now: Millis
        ) -> list[Effect]:
            if found is None:
                return [Reply(request, unanswered(name, "Part of the directory of queries did not answer."))]
            if refusal := still_read(name, [each for each in found if name in each.reads], there.subscribers):
                return [Reply(request, refusal)]
            return remove(claims, now)

        def removed(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [Reply(request, unanswered(name, event.reason))]
            assert isinstance(event, StoreWritten)
            finish = self._finish(request, name, event.replicas)
            unlisted = self._write(shard_of("streams", name), name, None, 0, finish, now)
            return [Tell(StreamRemoved(name)), *unlisted]

        return self._read(stream_key(name), looked, now)

    def _finish(self, request: RequestId, name: StreamName, replicas: int) -> Step:
        """The last step: the directory has been written."""

        def finished(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [Reply(request, unanswered(name, event.reason))]
            assert isinstance(event, StoreWritten)
            return [Reply(request, Done(stamp=self.clock.tick(now), replicas=min(replicas, event.replicas)))]

        return finished

    def _list(self, request: RequestId, now: Millis) -> list[Effect]:
        def listed(streams: tuple[StreamDefinition, ...] | None, now: Millis) -> list[Effect]:
            if streams is None:
                return [Reply(request, unanswered("*", "Part of the directory did not answer."))]
            return [Reply(request, StreamsListed(streams=streams))]

        return self._read_directory(listed, now)

    def _list_derived(self, request: RequestId, now: Millis) -> list[Effect]:
        def listed(entries: tuple[Entry, ...] | None, now: Millis) -> list[Effect]:
            if entries is None:
                return [Reply(request, unanswered("*", "Part of the directory did not answer."))]
            decoded = [value_of(DERIVED, entry) for entry in sorted(entries, key=lambda each: each.item)]
            return [Reply(request, DerivedListed(streams=tuple(e for e in decoded if isinstance(e, DerivedEntry))))]

        return read_shards(self._read, "derived", listed, now)

    def _show(self, request: RequestId, command: ShowStream, now: Millis) -> list[Effect]:
        name = command.name

        def looked(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [Reply(request, unanswered(name, event.reason))]
            assert isinstance(event, StoreRead)
            found = stream_in(event.entries, name, ())
            if found.definition is None and command.exactly:
                return [Reply(request, unknown_stream(name, None))]
            if found.definition is None:
                return self._refuse_unknown(request, name, now)
            publishers = tuple(_shown(entry) for entry in found.publishers)
            answer = StreamShown(
                definition=found.definition, publishers=publishers, subscriptions=len(found.subscribers)
            )
            return [Reply(request, answer)]

        return self._read(stream_key(name), looked, now)

    def _refuse_unknown(self, request: RequestId, name: StreamName, now: Millis) -> list[Effect]:
        def listed(streams: tuple[StreamDefinition, ...] | None, now: Millis) -> list[Effect]:
            return [Reply(request, unknown_stream(name, _nearest(name, streams)))]

        return self._read_directory(listed, now)

    # The store.

    def _read_directory(
        self, then: Callable[[tuple[StreamDefinition, ...] | None, Millis], list[Effect]], now: Millis
    ) -> list[Effect]:
        def listed(entries: tuple[Entry, ...] | None, now: Millis) -> list[Effect]:
            if entries is None:
                return then(None, now)
            decoded = [value_of(DEFINITIONS, entry) for entry in entries]
            streams = {each.name: each for each in decoded if isinstance(each, StreamDefinition)}
            return then(tuple(streams[name] for name in sorted(streams)), now)

        return read_shards(self._read, "streams", listed, now)

    def _read(self, key: Key, step: Step, now: Millis) -> list[Effect]:
        return self.store.read(key, self._token(step), now)

    def _write(
        self, key: Key, item: str, value: bytes | None, expires_in_ms: Millis, step: Step, now: Millis
    ) -> list[Effect]:
        return self.store.write(key, item, value, expires_in_ms, self._token(step), now)

    def _token(self, step: Step) -> Token:
        self._next_step += 1
        self._steps[self._next_step] = step
        return (ROLE, self._next_step)


def _told(token: Token) -> Step:
    """Tell the role that advertised how it went."""

    def written(event: Event, now: Millis) -> list[Effect]:
        if isinstance(event, StoreWritten):
            return [Tell(Advertised(token, event.replicas))]
        assert isinstance(event, StoreFailed)
        return [Tell(AdvertiseFailed(token, event.reason))]

    return written


def _derived_place(entry: DerivedEntry) -> tuple[Key, str]:
    """The key that an advertisement is stored under, and its name there."""
    return shard_of("derived", entry.name), f"{entry.name}/{entry.query}/{entry.number}"


def _exists(request: RequestId, name: StreamName) -> Reply:
    hint = f'"peer stream show {name}" tells about it.'
    return Reply(request, Refused(code="exists", error=f'stream "{name}" exists already', hint=hint))


def _not_found(name: StreamName, token: Token, streams: tuple[StreamDefinition, ...] | None) -> StreamFound:
    return StreamFound(token, name, None, nearest_name=_nearest(name, streams))


def _nearest(name: StreamName, streams: tuple[StreamDefinition, ...] | None) -> StreamName | None:
    """The name that was probably meant; comparing them all would take long where there are thousands."""
    likely = [each.name for each in streams or () if not each.query and abs(len(each.name) - len(name)) <= TYPOS_MAX]
    likely.sort(key=lambda each: (each[:1] != name[:1]) + (each[-1:] != name[-1:]))
    near = difflib.get_close_matches(name, likely[:COMPARED_MAX], n=1)
    return near[0] if near else None


def _shown(entry: PublisherEntry) -> PublisherShown:
    return PublisherShown(**msgspec.structs.asdict(entry))
