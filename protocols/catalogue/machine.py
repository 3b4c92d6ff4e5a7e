"""The catalogue of streams: what there is, who publishes to it, who reads it; kept in the replicated store.

Under a stream's key lie its definition and the advertisements of its publishers and subscribers. A directory of a few
keys holds the names of all streams, for listing and for guessing what a mistyped name meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

import msgspec

from protocols.catalogue.events import (
    Advertised,
    AdvertiseFailed,
    DerivedEntry,
    LookupFailed,
    PublisherEntry,
    StreamFound,
    SubscriberEntry,
)
from protocols.catalogue.messages import (
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
from protocols.catalogue.refusals import unknown_stream
from protocols.catalogue.streams import StreamDefinition, stream_key
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
from queries.schema import Field

ROLE: Final = "catalogue"
SHARDS: Final = 16
_DEFINITION: Final = "definition"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,126}")

_encode: Final = msgspec.msgpack.Encoder(enc_hook=bytes).encode


def _decoder(kind: type) -> msgspec.msgpack.Decoder[object]:
    return msgspec.msgpack.Decoder(kind, dec_hook=lambda wanted, raw: wanted(raw))


_DEFINITIONS: Final = _decoder(StreamDefinition)
_PUBLISHERS: Final = _decoder(PublisherEntry)
_SUBSCRIBERS: Final = _decoder(SubscriberEntry)
_DERIVED: Final = _decoder(DerivedEntry)

Step = Callable[[Event, Millis], list[Effect]]
"""What to do once the store has answered."""


@dataclass(slots=True)
class _Listing:
    """The directory, read shard by shard."""

    then: Callable[[tuple[StreamDefinition, ...] | None, Millis], list[Effect]]
    waiting: int = SHARDS
    failed: bool = False
    streams: dict[StreamName, StreamDefinition] = field(default_factory=dict)


@dataclass(slots=True)
class CatalogueMachine:
    """Streams by name, at one peer.

    In:        CREATE_STREAM, DROP_STREAM, LIST_STREAMS, SHOW_STREAM; lookup() and advertise…() of other roles
    Out:       Done, Refused, STREAMS, STREAM; StreamFound, LookupFailed, Advertised, AdvertiseFailed
    Keeps:     only what is under way; the store keeps the rest
    """

    owned: ClassVar[Owned] = Owned(ROLE, commands=(CreateStream, DropStream, ListStreams, ListDerived, ShowStream))

    peer_id: PeerId
    store: StoreMachine
    clock: HybridClock
    _steps: dict[int, Step] = field(default_factory=dict)
    _next_step: int = 0

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Requested(request=request, command=CreateStream() as command):
                return self._create(request, command.definition, now)
            case Requested(request=request, command=DropStream() as command):
                return self._drop(request, command.name, now)
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

    def lookup(self, name: StreamName, token: Token, now: Millis) -> list[Effect]:
        """Find a stream; answered with StreamFound or LookupFailed."""

        def found(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [Tell(LookupFailed(token, name, event.reason))]
            assert isinstance(event, StoreRead)
            answer = _stream_in(event.entries, name, token)
            if answer.definition is not None:
                return [Tell(answer)]
            if answer.is_dropped:
                return [Tell(answer)]
            return self._read_directory(lambda streams, _: [Tell(_not_found(name, token, streams))], now)

        return self._read(stream_key(name), found, now)

    def advertise_publisher(
        self, name: StreamName, entry: PublisherEntry, expires_in_ms: Millis, token: Token, now: Millis
    ) -> list[Effect]:
        """State that a peer publishes to a stream; answered with Advertised or AdvertiseFailed."""
        item = _publisher_item(entry.peer, entry.epoch)
        return self._advertise(name, item, _encode(entry), expires_in_ms, token, now)

    def advertise_subscriber(
        self, name: StreamName, entry: SubscriberEntry, expires_in_ms: Millis, token: Token, now: Millis
    ) -> list[Effect]:
        """State that a subscription reads a stream; answered with Advertised or AdvertiseFailed."""
        item = f"subscriber/{entry.subscription}"
        return self._advertise(name, item, _encode(entry), expires_in_ms, token, now)

    def withdraw_publisher(
        self, name: StreamName, peer: PeerId, epoch: Millis, token: Token, now: Millis
    ) -> list[Effect]:
        return self._advertise(name, _publisher_item(peer, epoch), None, 0, token, now)

    def withdraw_subscriber(
        self, name: StreamName, subscription: SubscriptionId, token: Token, now: Millis
    ) -> list[Effect]:
        return self._advertise(name, f"subscriber/{subscription}", None, 0, token, now)

    def _advertise(
        self, name: StreamName, item: str, value: bytes | None, expires_in_ms: Millis, token: Token, now: Millis
    ) -> list[Effect]:
        return self._write(stream_key(name), item, value, expires_in_ms, _told(token), now)

    def advertise_derived(self, entry: DerivedEntry, expires_in_ms: Millis, token: Token, now: Millis) -> list[Effect]:
        """State that a part of a query makes a stream; answered with Advertised or AdvertiseFailed."""
        key, item = _derived_place(entry)
        return self._write(key, item, _encode(entry), expires_in_ms, _told(token), now)

    def withdraw_derived(self, entry: DerivedEntry, token: Token, now: Millis) -> list[Effect]:
        key, item = _derived_place(entry)
        return self._write(key, item, None, 0, _told(token), now)

    # For clients.

    def _create(self, request: RequestId, definition: StreamDefinition, now: Millis) -> list[Effect]:
        """Read, write, and read again: if two clients create one name at once, the loser is told."""
        name = definition.name
        problem = _problem_with(definition)
        if definition.query and Inside.is_client(request):
            problem = "only a query makes the stream of its results"
        if problem:
            return [Reply(request, Refused(code="invalid", error=f'stream "{name}": {problem}'))]
        if definition.query:
            return self._create_own(request, definition, now)
        mine = msgspec.structs.replace(definition, created_at=self.clock.tick(now))

        def first_look(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [_unavailable(request, name, event.reason)]
            assert isinstance(event, StoreRead)
            there = _stream_in(event.entries, name, ()).definition
            if there is not None:  # Its creator may have crashed before it wrote the directory.
                exists = _exists(request, name)
                return self._write(_shard_of(name), name, _encode(there), 0, lambda *_: [exists], now)
            return self._write(stream_key(name), _DEFINITION, _encode(mine), 0, written, now)

        def written(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [_unavailable(request, name, event.reason)]
            assert isinstance(event, StoreWritten)
            replicas = event.replicas
            return self._read(stream_key(name), lambda event, now: second_look(event, now, replicas), now)

        def second_look(event: Event, now: Millis, replicas: int) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [_unavailable(request, name, event.reason)]
            assert isinstance(event, StoreRead)
            if _stream_in(event.entries, name, ()).definition != mine:
                return [_exists(request, name)]
            listed = self._finish(request, name, replicas)
            return self._write(_shard_of(name), name, _encode(mine), 0, listed, now)

        return self._read(stream_key(name), first_look, now)

    def _create_own(self, request: RequestId, mine: StreamDefinition, now: Millis) -> list[Effect]:
        """Create the stream of a query's results: its name is unique, so nothing has to be read first.

        A reader that knows the name finds the definition directly; the directory serves only those who list streams.
        """

        def defined(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [_unavailable(request, mine.name, event.reason)]
            assert isinstance(event, StoreWritten)
            return [Reply(request, Done(stamp=self.clock.tick(now), replicas=event.replicas))]

        effects = self._write(stream_key(mine.name), _DEFINITION, _encode(mine), 0, defined, now)
        return effects + self._write(_shard_of(mine.name), mine.name, _encode(mine), 0, lambda *_: [], now)

    def _drop(self, request: RequestId, name: StreamName, now: Millis) -> list[Effect]:
        def looked(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [_unavailable(request, name, event.reason)]
            assert isinstance(event, StoreRead)
            # Whoever removed it may have crashed before it wrote the directory.
            if _stream_in(event.entries, name, ()).definition is None:
                return self._write(
                    _shard_of(name), name, None, 0, lambda _, now: self._refuse_unknown(request, name, now), now
                )
            return self._write(stream_key(name), _DEFINITION, None, 0, removed, now)

        def removed(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [_unavailable(request, name, event.reason)]
            assert isinstance(event, StoreWritten)
            return self._write(_shard_of(name), name, None, 0, self._finish(request, name, event.replicas), now)

        return self._read(stream_key(name), looked, now)

    def _finish(self, request: RequestId, name: StreamName, replicas: int) -> Step:
        """The last step: the directory has been written."""

        def finished(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [_unavailable(request, name, event.reason)]
            assert isinstance(event, StoreWritten)
            return [Reply(request, Done(stamp=self.clock.tick(now), replicas=min(replicas, event.replicas)))]

        return finished

    def _list(self, request: RequestId, now: Millis) -> list[Effect]:
        def listed(streams: tuple[StreamDefinition, ...] | None, now: Millis) -> list[Effect]:
            if streams is None:
                return [_unavailable(request, "*", "Part of the directory did not answer.")]
            return [Reply(request, StreamsListed(streams=streams))]

        return self._read_directory(listed, now)

    def _list_derived(self, request: RequestId, now: Millis) -> list[Effect]:
        found: dict[str, DerivedEntry] = {}
        reads: list[Event] = []

        def read(event: Event, now: Millis) -> list[Effect]:
            reads.append(event)
            for entry in event.entries if isinstance(event, StoreRead) else ():
                derived = _decoded(_DERIVED, entry)
                if isinstance(derived, DerivedEntry):
                    found[entry.item] = derived
            if len(reads) < SHARDS:
                return []
            if not all(isinstance(each, StoreRead) for each in reads):
                return [_unavailable(request, "*", "Part of the directory did not answer.")]
            return [Reply(request, DerivedListed(streams=tuple(found[item] for item in sorted(found))))]

        effects: list[Effect] = []
        for shard in range(SHARDS):
            effects += self._read(Key.of("derived", str(shard)), read, now)
        return effects

    def _show(self, request: RequestId, command: ShowStream, now: Millis) -> list[Effect]:
        name = command.name

        def looked(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [_unavailable(request, name, event.reason)]
            assert isinstance(event, StoreRead)
            found = _stream_in(event.entries, name, ())
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
        listing = _Listing(then)

        def read(event: Event, now: Millis) -> list[Effect]:
            listing.waiting -= 1
            if isinstance(event, StoreRead):
                for entry in event.entries:
                    definition = _decoded(_DEFINITIONS, entry)
                    if isinstance(definition, StreamDefinition):
                        listing.streams[definition.name] = definition
            else:
                listing.failed = True
            if listing.waiting:
                return []
            streams = tuple(listing.streams[name] for name in sorted(listing.streams))
            return listing.then(None if listing.failed else streams, now)

        effects: list[Effect] = []
        for shard in range(SHARDS):
            effects += self._read(Key.of("streams", str(shard)), read, now)
        return effects

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
    shard = Key.of("shard", entry.name)[0] % SHARDS
    return Key.of("derived", str(shard)), f"{entry.name}/{entry.query}/{entry.number}"


def _exists(request: RequestId, name: StreamName) -> Reply:
    hint = f'"peer stream show {name}" tells about it.'
    return Reply(request, Refused(code="exists", error=f'stream "{name}" exists already', hint=hint))


def _unavailable(request: RequestId, name: StreamName, reason: str) -> Reply:
    refusal = Refused(
        code="unavailable",
        error=f'stream "{name}": the peers that keep the catalogue did not answer in time',
        detail=reason,
        hint="Try again; the network may be healing.",
        retry_after_ms=1000,
    )
    return Reply(request, refusal)


def _has_list(fields: tuple[Field, ...]) -> bool:
    return any(field.type == "list" or _has_list(field.fields) for field in fields)


def _problem_with(definition: StreamDefinition) -> str | None:
    if not _NAME.fullmatch(definition.name):
        return "a name begins with a letter and has letters, digits, dots, dashes and underscores, 127 at most"
    if not definition.schema.fields:
        return "it has no columns"
    if _has_list(definition.schema.fields):
        return "a column cannot be a list"
    if definition.event_time is not None:
        columns = {column.name: column for column in definition.schema.fields}
        column = columns.get(definition.event_time)
        if column is None or column.type != "timestamp":
            return f'its event time "{definition.event_time}" is not a column of type timestamp'
        if column.nullable:
            return f'its event time "{definition.event_time}" may be null; a row without a time has no place in it'
    if definition.retention_ms <= 0 or definition.lateness_ms < 0 or definition.idle_ms < 0:
        return "retention must be above 0, lateness and idle not below"
    if definition.idle_ms and definition.event_time is None:
        return "only a stream with an event time can be idle; without one, windows close by the clock"
    return None


def _stream_in(entries: tuple[Entry, ...], name: StreamName, token: Token) -> StreamFound:
    """Read the entries under a stream's key; an entry that cannot be decoded counts as absent."""
    definition: StreamDefinition | None = None
    is_dropped = False
    publishers: list[PublisherEntry] = []
    subscribers: list[SubscriberEntry] = []
    for entry in sorted(entries, key=lambda each: each.item):
        if entry.item == _DEFINITION:
            decoded = _decoded(_DEFINITIONS, entry)
            definition = decoded if isinstance(decoded, StreamDefinition) else None
            is_dropped = entry.value is None
        elif entry.item.startswith("publisher/"):
            publisher = _decoded(_PUBLISHERS, entry)
            publishers += [publisher] if isinstance(publisher, PublisherEntry) else []
        elif entry.item.startswith("subscriber/"):
            subscriber = _decoded(_SUBSCRIBERS, entry)
            subscribers += [subscriber] if isinstance(subscriber, SubscriberEntry) else []
    return StreamFound(
        token, name, definition, tuple(publishers), tuple(subscribers), nearest_name=None, is_dropped=is_dropped
    )


def _decoded(decoder: msgspec.msgpack.Decoder[object], entry: Entry) -> object | None:
    try:
        return decoder.decode(entry.value) if entry.value is not None else None
    except (msgspec.DecodeError, ValueError):
        return None


def _not_found(name: StreamName, token: Token, streams: tuple[StreamDefinition, ...] | None) -> StreamFound:
    return StreamFound(token, name, None, nearest_name=_nearest(name, streams))


def _nearest(name: StreamName, streams: tuple[StreamDefinition, ...] | None) -> StreamName | None:
    near = difflib.get_close_matches(name, [stream.name for stream in streams or ()], n=1)
    return near[0] if near else None


def _shown(entry: PublisherEntry) -> PublisherShown:
    return PublisherShown(**msgspec.structs.asdict(entry))


def _publisher_item(peer: PeerId, epoch: Millis) -> str:
    return f"publisher/{peer.hex()}/{epoch}"


def _shard_of(name: StreamName) -> Key:
    return Key.of("streams", str(Key.of("shard", name)[0] % SHARDS))
