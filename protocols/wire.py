"""Bytes of everything that travels or is stored: one byte for the encoding, then msgpack by position.

Decoding is typed: what does not fit a known shape is a RemoteProtocolError, never an exception of some other kind, and
nesting is bounded by the shapes themselves. A reader ignores fields behind those it knows, and gives a field that is
not there its default: so a field with a default may be added at the end of any shape (tests/protocols/test_spoken.py).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, Generic, TypeVar, Union

import msgspec

from protocols import subgraphs
from protocols.catalogue import messages as catalogue
from protocols.delivery import messages as delivery
from protocols.errors import RemoteProtocolError, UnknownKind
from protocols.execution import messages as execution
from protocols.ids import Key
from protocols.join_index import messages as join_index
from protocols.messages import Answer, Command, Done, Message, Record, Refused
from protocols.placement import messages as placement
from protocols.rights import messages as rights
from protocols.sharing import messages as sharing
from protocols.store import messages as store
from protocols.versions import Family

T = TypeVar("T", bound=msgspec.Struct)

ENCODING: Final = 1
_ENCODING_BYTE: Final = bytes([ENCODING])
_KIND_CHARACTERS_MAX: Final = 40
_MODULES: Final = (catalogue, delivery, execution, join_index, placement, rights, sharing, store, subgraphs)


def kinds_of(base: type[msgspec.Struct], modules: tuple[ModuleType, ...]) -> tuple[type[msgspec.Struct], ...]:
    """Every kind of message (or record, command, answer) in some modules, by the name it has on the wire."""
    found: dict[str, type[msgspec.Struct]] = {}
    for module in modules:
        for thing in vars(module).values():
            if isinstance(thing, type) and issubclass(thing, base) and thing is not base:
                found[str(thing.__struct_config__.tag)] = thing
    if base is Answer:
        found.update({"REFUSED": Refused, "DONE": Done})
    return tuple(found[tag] for tag in sorted(found))


def _encode_hook(thing: object) -> object:
    if isinstance(thing, bytes):
        return bytes(thing)
    raise NotImplementedError(f"{type(thing).__name__} has no place on the wire")


def _decode_hook(kind: type, thing: object) -> object:
    if issubclass(kind, Key) and isinstance(thing, bytes):
        return kind(thing)
    raise ValueError(f"expected {kind.__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)


class _AnyKind(msgspec.Struct, array_like=True):
    """The beginning of anything that has a kind; what follows is skipped."""

    kind: str


_kind_decoder = msgspec.msgpack.Decoder(_AnyKind)


class Codec(Generic[T]):
    """Encodes and decodes messages, or records, commands, answers."""

    def __init__(self, base: type[T], modules: tuple[ModuleType, ...] = _MODULES) -> None:
        self.kinds = kinds_of(base, modules)
        self._names = frozenset(str(kind.__struct_config__.tag) for kind in self.kinds)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            Union[self.kinds],  # noqa: UP007 - made at run time
            dec_hook=_decode_hook,
        )

    def encode(self, thing: T) -> bytes:
        return _ENCODING_BYTE + _encoder.encode(thing)

    def decode(self, raw: bytes) -> T:
        if raw[:1] != _ENCODING_BYTE:
            raise RemoteProtocolError(f"encoding {raw[0] if raw else 'none'}, expected {ENCODING}")
        try:
            decoded: T = self._decoder.decode(memoryview(raw)[1:])
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            kind = kind_in(raw)
            if kind and kind not in self._names:
                raise UnknownKind(kind) from error
            raise RemoteProtocolError(f"malformed: {error}") from error
        return decoded


def kind_in(raw: bytes) -> str:
    """The kind of something encoded, read without the rest of it; empty where there is none."""
    try:
        kind = _kind_decoder.decode(memoryview(raw)[1:]).kind
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ""
    return kind if kind.isidentifier() and len(kind) <= _KIND_CHARACTERS_MAX else ""


MESSAGES: Final = Codec(Message)
RECORDS: Final = Codec(Record)
COMMANDS: Final = Codec(Command)
ANSWERS: Final = Codec(Answer)

_FAMILIES: Final[dict[str, Family]] = {
    store.__name__: "store",
    delivery.__name__: "delivery",
    subgraphs.__name__: "execution",
    execution.__name__: "execution",
    join_index.__name__: "join_index",
    placement.__name__: "placement",
    rights.__name__: "rights",
}
FAMILY_OF: Final[dict[type[msgspec.Struct], Family]] = {kind: _FAMILIES[kind.__module__] for kind in MESSAGES.kinds}
"""The family of each kind of message, by the module that defines it."""
FAMILY_OF_NAME: Final[dict[str, Family]] = {str(kind.__struct_config__.tag): FAMILY_OF[kind] for kind in FAMILY_OF}
