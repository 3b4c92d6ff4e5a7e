"""Bytes of everything that travels or is stored: one version byte, then msgpack by position.

Decoding is typed: what does not fit a known shape is a RemoteProtocolError, never an exception of some other kind, and
nesting is bounded by the shapes themselves.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, Generic, TypeVar, Union

import msgspec

from protocols import subgraphs
from protocols.catalogue import messages as catalogue
from protocols.delivery import messages as delivery
from protocols.errors import RemoteProtocolError
from protocols.execution import messages as execution
from protocols.ids import Key
from protocols.join_index import messages as join_index
from protocols.messages import Answer, Command, Done, Message, Record, Refused
from protocols.placement import messages as placement
from protocols.store import messages as store

T = TypeVar("T", bound=msgspec.Struct)

VERSION: Final = 1
_VERSION_BYTE: Final = bytes([VERSION])
_MODULES: Final = (catalogue, delivery, execution, join_index, placement, store, subgraphs)


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


class Codec(Generic[T]):
    """Encodes and decodes one family: messages, records, commands or answers."""

    def __init__(self, base: type[T], modules: tuple[ModuleType, ...] = _MODULES) -> None:
        self.kinds = kinds_of(base, modules)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            Union[self.kinds],  # noqa: UP007 - made at run time
            dec_hook=_decode_hook,
        )

    def encode(self, thing: T) -> bytes:
        return _VERSION_BYTE + _encoder.encode(thing)

    def decode(self, raw: bytes) -> T:
        if raw[:1] != _VERSION_BYTE:
            raise RemoteProtocolError(f"version {raw[0] if raw else 'none'} of the protocol, expected {VERSION}")
        try:
            decoded: T = self._decoder.decode(memoryview(raw)[1:])
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"malformed: {error}") from error
        return decoded


MESSAGES: Final = Codec(Message)
RECORDS: Final = Codec(Record)
COMMANDS: Final = Codec(Command)
ANSWERS: Final = Codec(Answer)
