"""Which right each command and each message needs: the one table of who may what.

A message that is not named here needs none; a command is named, or for admins. Names, schemas and counters of streams
and queries are no secret inside a network; what is in the streams is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from protocols.catalogue.custody import CUSTODY, claimed_keeping
from protocols.catalogue.entries import ALTERATION, claimed
from protocols.catalogue.messages import (
    AlterStream,
    CreateStream,
    DropStream,
    ListDerived,
    ListStreams,
    ShowStream,
)
from protocols.catalogue.streams import StreamDefinition, stream_key
from protocols.delivery.messages import (
    Ack,
    Backup,
    BatchMessage,
    CloseSubscription,
    Gap,
    Heartbeat,
    ListDeadLetters,
    OpenSubscription,
    Publish,
    Punctuate,
    Refuse,
    Seen,
    StreamGone,
    Subscribe,
    Unsubscribe,
)
from protocols.execution.messages import (
    AdoptQuery,
    AskProxy,
    ListQueries,
    PlanQuery,
    ShowQuery,
    StopQuery,
    SubmitQuery,
    WeighQuery,
)
from protocols.ids import Key, PeerId, StreamName
from protocols.join_index.messages import IndexQuery, Parcel
from protocols.messages import Command, Message
from protocols.reading import read
from protocols.rights.messages import (
    Authenticate,
    CreateToken,
    Grant,
    ListAudit,
    Principal,
    RemoveToken,
    Revoke,
    SetPolicy,
    ShowRights,
    Verb,
)
from protocols.rights.table import KEY, QUERY, object_of, peer_principal
from protocols.sharing.messages import ListShared
from protocols.store.entries import Entry
from protocols.store.messages import Leave
from protocols.subgraphs import Deploy, Lease, Prepare, StreamInput
from queries.plan import sources

ALL: Final = "*"
UNNAMED: Final = "q-"  # How a query is called that its client gives no name.


class Need(NamedTuple):
    """A right: to do this with that."""

    verb: Verb
    object: str


class PeerNeed(NamedTuple):
    """A right that a peer must have."""

    peer: PeerId
    verb: Verb
    object: str

    @property
    def principal(self) -> Principal:
        return peer_principal(self.peer)


# What clients ask.


def _stream(verb: Verb) -> Callable[[Any], Need]:
    return lambda command: Need(verb, object_of(command.stream))


def _admin(_command: Command) -> Need:
    return Need("admin", ALL)


def query_object(name: str) -> str:
    """A query, also as NAME@PEER."""
    return f"{QUERY}{name.partition('@')[0] or UNNAMED}"


OF_COMMAND: Final[dict[type[Command], Callable[[Any], Need]]] = {
    Publish: _stream("publish"),
    Punctuate: _stream("publish"),
    OpenSubscription: _stream("read"),
    ListDeadLetters: _stream("read"),
    CreateStream: lambda command: Need("create", object_of(command.definition.name)),
    AlterStream: lambda command: Need("create", object_of(command.name)),
    DropStream: lambda command: Need("create", object_of(command.name)),
    SubmitQuery: lambda command: Need("create", query_object(command.name)),
    StopQuery: lambda command: Need("stop", query_object(command.query)),
    AdoptQuery: lambda command: Need("create", query_object(command.query)),
    SetPolicy: _admin,
    Grant: _admin,
    Revoke: _admin,
    CreateToken: _admin,
    RemoveToken: _admin,
    ListAudit: _admin,
    Leave: _admin,
}

OF_SUBSCRIPTION: Final = (Seen, Refuse, CloseSubscription)
"""They name a subscription; what it reads is the object."""
FREE: Final = (
    *(ListStreams, ShowStream, ListDerived, ListShared, ListQueries, ShowQuery, PlanQuery, WeighQuery),
    *(Authenticate, ShowRights),
)
"""Commands that need no right. One that is named nowhere here is for admins."""


def of_command(command: Command) -> Need | None:
    """The right that a command needs which names its object; None for none."""
    return None if type(command) in FREE else OF_COMMAND.get(type(command), _admin)(command)


# What other peers send. The needs of each are checked in order.


def _subscribe(sender: PeerId, _own: PeerId, message: Subscribe | Unsubscribe) -> Iterator[PeerNeed]:
    yield PeerNeed(sender, "read", object_of(message.stream))


def _ack(sender: PeerId, _own: PeerId, message: Ack) -> Iterator[PeerNeed]:
    for position in message.positions:
        yield PeerNeed(sender, "read", object_of(position.origin.stream))


def _publisher(peer: PeerId, stream: StreamName) -> PeerNeed:
    """Whoever runs a query publishes its results."""
    thing = object_of(stream)
    return PeerNeed(peer, "create" if thing.startswith(QUERY) else "publish", thing)


def _batches(_sender: PeerId, _own: PeerId, message: BatchMessage) -> Iterator[PeerNeed]:
    """A backup serves tuples of their publisher, so that one counts."""
    for batch in message.batches:
        yield _publisher(batch.origin.publisher, batch.origin.stream)


def _gap(_sender: PeerId, _own: PeerId, message: Gap) -> Iterator[PeerNeed]:
    yield _publisher(message.origin.publisher, message.origin.stream)


def _heartbeat(_sender: PeerId, _own: PeerId, message: Heartbeat) -> Iterator[PeerNeed]:
    yield _publisher(message.silence.origin.publisher, message.silence.origin.stream)


def _backup(sender: PeerId, _own: PeerId, message: Backup) -> Iterator[PeerNeed]:
    yield _publisher(sender, message.origin.stream)
    yield _publisher(message.origin.publisher, message.origin.stream)


def _stream_gone(sender: PeerId, _own: PeerId, message: StreamGone) -> Iterator[PeerNeed]:
    yield PeerNeed(sender, "create", object_of(message.stream))


def _deploy(sender: PeerId, own: PeerId, message: Deploy) -> Iterator[PeerNeed]:
    yield PeerNeed(sender, "create", object_of(message.query))
    for each in message.subgraph.inputs:
        if isinstance(each, StreamInput):
            yield PeerNeed(sender, "read", object_of(each.stream))
            yield PeerNeed(own, "read", object_of(each.stream))


def _of_proxy(sender: PeerId, _own: PeerId, message: Lease | Prepare) -> Iterator[PeerNeed]:
    yield PeerNeed(sender, "create", object_of(message.query))


def _index(sender: PeerId, own: PeerId, message: IndexQuery) -> Iterator[PeerNeed]:
    yield PeerNeed(sender, "create", object_of(message.query.id.partition("~")[0]))
    for source in sources(message.query.plan):
        yield PeerNeed(sender, "read", object_of(source.stream))
        yield PeerNeed(own, "read", object_of(source.stream))


def _parcel(sender: PeerId, own: PeerId, message: Parcel) -> Iterator[PeerNeed]:
    for query in message.queries:
        for source in sources(query.plan):
            yield PeerNeed(sender, "read", object_of(source.stream))
            yield PeerNeed(own, "read", object_of(source.stream))


def _ask_proxy(sender: PeerId, _own: PeerId, message: AskProxy) -> Iterator[PeerNeed]:
    if isinstance(message.command, StopQuery):
        yield PeerNeed(sender, "stop", query_object(message.command.query))
    if isinstance(message.command, AdoptQuery):
        yield PeerNeed(sender, "create", query_object(message.command.query))


OF_MESSAGE: Final[dict[type[Message], Callable[[PeerId, PeerId, Any], Iterator[PeerNeed]]]] = {
    Subscribe: _subscribe,
    Unsubscribe: _subscribe,
    Ack: _ack,
    BatchMessage: _batches,
    Gap: _gap,
    Heartbeat: _heartbeat,
    Backup: _backup,
    Deploy: _deploy,
    Lease: _of_proxy,
    Prepare: _of_proxy,
    IndexQuery: _index,
    Parcel: _parcel,
    AskProxy: _ask_proxy,
    StreamGone: _stream_gone,
}

# What peers have the store keep: rights, the definitions of streams, claims on their next versions, and on who takes a
# query over.

DEFINITION: Final = "definition"  # The name of a definition under the key of its stream.
_definitions: Final = msgspec.msgpack.Decoder(
    StreamDefinition, dec_hook=lambda kind, raw: kind(raw) if issubclass(kind, Key) else raw
)


def of_entry(entry: Entry, before: Entry | None) -> Need | None:
    """The right that its writer needs; `before` is the version that this peer holds, if it does."""
    if entry.key == KEY:
        return Need("admin", ALL)
    named = _defined
    if entry.item.startswith(ALTERATION):
        named = claimed
    elif entry.item.startswith(CUSTODY):
        named = claimed_keeping
    elif entry.item != DEFINITION:
        return None
    for each in (entry, before):
        name = named(each)
        if name is not None and stream_key(name) == entry.key:
            return Need("create", object_of(name))
    return None


def _defined(entry: Entry | None) -> StreamName | None:
    """The stream that an entry defines."""
    definition = read(_definitions, entry.value) if entry is not None else None
    return definition.name if definition is not None else None
