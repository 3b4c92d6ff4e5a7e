"""A member that sends well-formed messages without sense into a simulated network that does honest work.

It hears what honest peers say to each other, changes some fields to other values of the right type, and sends the
result to any peer in any order. A stranger knows the shape of these messages, and no name or number in them. One that
knows more sends them as they are but for what it changes, yet as itself. A liar sends them in the name of any peer.
"""

from __future__ import annotations

import random
import types
import typing
from collections import Counter, deque
from collections.abc import Collection
from typing import Any, Literal

import msgspec

from overlay.sim.network import Endpoint
from overlay.sim.peer import SimPeer
from overlay.sim.world import World
from protocols.catalogue.entries import Claim, encode
from protocols.catalogue.events import DerivedEntry, PublisherEntry, QueryEntry, SubscriberEntry
from protocols.catalogue.streams import StreamDefinition
from protocols.errors import RemoteProtocolError
from protocols.events import Received
from protocols.ids import Key, Millis, PeerId
from protocols.messages import Message
from protocols.store.entries import Entry
from protocols.store.messages import StorePut
from protocols.versions import Family
from protocols.wire import FAMILY_OF, MESSAGES
from queries.schema import Schema
from tests.protocols.things import make
from tests.structs import fields_of

STRANGER = PeerId(b"stranger in the net!")
INTS = (0, 1, 2, 3, 7, 1000, -1, -7, 1 << 31, (1 << 53) - 1, 1 << 53, (1 << 62) - 1, (1 << 63) - 1, 1 << 63)
MORE_INTS = ((1 << 64) - 1, -(1 << 31), -(1 << 63), 1_750_000_000_000, 1_750_000_000_000 << 16, 1 << 40)
FLOATS = (0.0, -1.0, 0.5, 1e308, -1e308, float("inf"), float("-inf"), float("nan"))
BYTES = (b"", b"\x90", b"\x91\xc0", b"\x91\x91\x01", b"\xdd\xff\xff\xff\xff", b"\x91" * 3000, b"\xc1", b"\x93\x01\x02")
STRINGS = ("", "nobody", "a/b/c", "\0", "x" * 300, "~", "nobody~1", "é", "stranger~3")
Manner = Literal["stranger", "knows", "lies"]
NAME_BYTES_MAX = 32  # Groups, digests and sessions: bytes that name something.
NUMBER_MAX = 1 << 32  # Greater ones are stamps, attempts, lives: they name something.
# What entries of the store hold: by the beginning of their names, or whichever can be read.
CONTENTS = {
    "definition": StreamDefinition,
    "publisher/": PublisherEntry,
    "subscriber/": SubscriberEntry,
    "alteration/": Claim,
}
OTHER_CONTENTS = (QueryEntry, DerivedEntry, StreamDefinition)
HEARD_MAX = 30  # Messages of each kind that it remembers.
CHANGED_SHARE = 0.25
CONTENT_SHARE = 0.7  # Of entries, whose content is changed and nothing else.
DEEP_SHARE = 0.05
DEEP = b"\x91" * 20_000 + b"\xc0"  # Deeper than a decoder can go.


class Mutator:
    """Changes fields of messages to other values of the same type."""

    def __init__(self, luck: random.Random, manner: Manner, families: Collection[Family] = ()) -> None:
        self.luck = luck
        self.knows = manner != "stranger"
        self.kinds = [kind for kind in MESSAGES.kinds if not families or FAMILY_OF[kind] in families]
        self.heard: dict[type[Message], deque[Message]] = {}
        self.peers: list[PeerId] = [STRANGER]
        self._values: dict[str, deque[Any]] = {}

    def hear(self, message: Message) -> None:
        """Remember a message of honest peers, and the values in it."""
        self.heard.setdefault(type(message), deque(maxlen=HEARD_MAX)).append(message)
        if self.luck.random() < 0.2:
            self._learn(message)

    def hear_of(self, thing: Any) -> None:
        """Remember the values in something, for instance in an entry of the store."""
        self._learn(_content_of(thing) if isinstance(thing, Entry) else thing)

    def _learn(self, thing: Any) -> None:
        if isinstance(thing, msgspec.Struct):
            for name in thing.__struct_fields__:
                self._learn(getattr(thing, name))
        elif isinstance(thing, tuple):
            for each in thing[:5]:
                self._learn(each)
        elif isinstance(thing, Key | str | int | bytes) and not isinstance(thing, bool):
            self._values.setdefault(type(thing).__name__, deque(maxlen=200)).append(thing)

    def message(self) -> Message:
        kind: Any = self.luck.choice(self.kinds)
        heard = self.heard.get(kind)
        if heard and self.luck.random() < 0.8:
            base: Any = self.luck.choice(heard)
        else:
            base = make(kind, self.luck)
        changed: Message = self._struct(base, at_least=1)
        return changed if self.knows else self._renamed(changed)

    def _renamed(self, thing: Any) -> Any:
        """The same about things that nobody has."""
        match thing:
            case Schema() | PeerId() | bool():
                return thing
            case Key():
                return make(Key, self.luck)
            case str():
                return self.luck.choice(STRINGS)
            case bytes() if len(thing) <= NAME_BYTES_MAX:
                return self.luck.randbytes(len(thing))
            case int() if thing > NUMBER_MAX:
                return self.luck.randrange(1 << 62)
            case tuple():
                return tuple(map(self._renamed, thing))
            case msgspec.Struct():
                fields = {name: getattr(thing, name) for name in thing.__struct_fields__}
                literals = {each.name for each in fields_of(type(thing)) if typing.get_origin(each.type) is Literal}
                renamed = {name: value if name in literals else self._renamed(value) for name, value in fields.items()}
                try:
                    return type(thing)(**renamed)
                except ValueError:
                    return thing
        return thing

    def _struct(self, thing: Any, at_least: int = 0) -> Any:
        fields = fields_of(type(thing))
        names = [each.name for each in fields if self.luck.random() < CHANGED_SHARE]
        if len(names) < at_least and fields:
            names = [self.luck.choice(fields).name]
        changes = {
            each.name: self.changed(getattr(thing, each.name), each.type) for each in fields if each.name in names
        }
        raw = {each.name: changes.get(each.name, getattr(thing, each.name)) for each in fields}
        try:
            return type(thing)(**raw)
        except ValueError:
            return thing

    def changed(self, value: Any, kind: Any) -> Any:
        luck = self.luck
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self.changed(value, arguments[0])
        if origin in (typing.Union, types.UnionType):
            if isinstance(value, msgspec.Struct) and luck.random() < 0.7:
                return self._struct(value, at_least=1)
            if value is None or luck.random() < 0.3:
                return self._other(luck.choice(arguments))
            return self.changed(value, next((each for each in arguments if _fits(value, each)), arguments[0]))
        if origin is Literal:
            return luck.choice(arguments)
        if origin is tuple and arguments[-1] is ...:
            return self._tuple(value, arguments[0])
        if origin is tuple:
            return tuple(self.changed(one, each) for one, each in zip(value, arguments, strict=True))
        if isinstance(value, Entry) and self.knows and luck.random() < CONTENT_SHARE:
            return self.entry(value)
        if isinstance(value, msgspec.Struct) and not isinstance(value, Schema):
            return self._struct(value, at_least=1)
        return self._other(kind, value)

    def entry(self, entry: Entry) -> Entry:
        """A newer version of an entry, with other content."""
        stamp = entry.stamp + self.luck.choice((1, 1 << 16, 1 << 20))
        content = _content_of(entry)
        value = encode(self._struct(content, at_least=1)) if content is not None else entry.value
        if content is not None and self.luck.random() < DEEP_SHARE:
            value = deeper(value)
        return msgspec.structs.replace(entry, value=value, stamp=stamp)

    def _tuple(self, value: tuple[Any, ...], kind: Any) -> tuple[Any, ...]:
        luck, things = self.luck, list(value)
        match luck.randrange(6):
            case 0:
                return ()
            case 1:
                return (*things, *things)
            case 2:
                return tuple(things[: len(things) // 2])
            case 3:
                return (*things, self._other(kind))
            case 4 if things:
                place = luck.randrange(len(things))
                things[place] = self.changed(things[place], kind)
            case _:
                luck.shuffle(things)
        return tuple(things)

    def _other(self, kind: Any, value: Any = None) -> Any:
        luck = self.luck
        if kind is bool or kind is type(None):
            return make(kind, luck)
        if kind is int:
            numbers = [*INTS, *MORE_INTS]
            if self._values.get("int") and luck.random() < 0.5:
                return luck.choice(self._values["int"]) + luck.choice((0, 0, 1, -1))
            return luck.choice(numbers)
        if kind is float:
            return luck.choice(FLOATS)
        if kind is str:
            known = self._values.get("str")
            return luck.choice(known) if known and luck.random() < 0.6 else luck.choice(STRINGS)
        if kind is bytes:
            known = self._values.get("bytes")
            return luck.choice(known) if known and luck.random() < 0.4 else luck.choice(BYTES)
        if kind is PeerId:
            return luck.choice(self.peers)
        if kind is Key:
            known = self._values.get("Key")
            return luck.choice(known) if known and luck.random() < 0.6 else make(kind, luck)
        try:
            made = make(kind, luck)
        except (KeyError, ValueError):  # No type that `make` knows, or no field of a schema.
            return value
        return self._struct(made) if isinstance(made, msgspec.Struct) and not isinstance(made, Schema) else made


def deeper(value: bytes | None) -> bytes | None:
    """The same with one more field, as a later release may have, and that one nested without end."""
    if not value:
        return value
    fields = msgspec.msgpack.decode(value, type=list[msgspec.Raw])
    return msgspec.msgpack.encode([*fields, msgspec.Raw(DEEP)])


def _content_of(entry: Entry) -> Any:
    """What is written in an entry; None if nobody could read it."""
    kinds = [kind for beginning, kind in CONTENTS.items() if entry.item.startswith(beginning)]
    for kind in kinds or OTHER_CONTENTS:
        try:
            return msgspec.msgpack.decode(entry.value or b"", type=kind, dec_hook=lambda wanted, raw: wanted(raw))
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
    return None


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    if typing.get_origin(kind) is typing.Annotated:
        return _fits(value, typing.get_args(kind)[0])
    plain = typing.get_origin(kind) or kind
    return isinstance(plain, type) and isinstance(value, plain)


class SenselessMember:
    """Sends a message now and then, from the beginning of a run to its end."""

    def __init__(
        self, world: World, manner: Manner, every_ms: Millis, at_once: int, families: Collection[Family] = ()
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._world = world
        self._luck = world.rng("senseless")
        self._every_ms = every_ms
        self._at_once = at_once
        self._manner = manner
        self._mutator = Mutator(self._luck, manner, families)
        post = world.network._post

        def overheard(sender: Endpoint, target: Endpoint, key: Key | None, message: Message) -> None:
            self._mutator.hear(message)
            post(sender, target, key, message)

        world.network._post = overheard  # type: ignore[method-assign]
        world.agenda.after(every_ms, self._speak)

    def _speak(self) -> None:
        self._world.agenda.after(self._every_ms, self._speak)
        self._mutator.peers = [STRANGER, *(peer.peer_id for peer in self._world.peers)]
        up = [peer for peer in self._world.peers if peer.is_up]
        for _ in range(self._at_once):
            if up:
                self._send(self._luck.choice(up))

    def _send(self, target: SimPeer) -> None:
        message = self._mutator.message()
        sender = self._luck.choice(self._mutator.peers) if self._manner == "lies" else STRANGER
        if sender == target.peer_id:
            sender = STRANGER
        if isinstance(message, StorePut) and self._luck.random() < 0.8:  # Others are dropped at once.
            message = StorePut(entry=msgspec.structs.replace(message.entry, writer=sender))
        try:
            decoded = MESSAGES.decode(MESSAGES.encode(message))
        except (RemoteProtocolError, OverflowError):
            self.counters["refused"] += 1
            return
        self.counters["sent"] += 1
        target.take(Received(sender, decoded), target.life)
