"""The shapes that travel between peers or lie in their journals, by family; and how other releases would write them."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from overlay import datagrams, frames, identity, router
from protocols.catalogue.events import DerivedEntry, PublisherEntry, SubscriberEntry
from protocols.catalogue.streams import StreamDefinition
from protocols.versions import VERSIONS, Span
from protocols.wire import FAMILY_OF, MESSAGES, RECORDS
from tests.structs import fields_of

Shape = type[msgspec.Struct]

ROOTS: dict[str, tuple[Shape, ...]] = {
    "link": (
        datagrams.Envelope,
        frames.Hello,
        frames.OpenChannel,
        identity.RecordBody,
        identity.TokenBody,
        router.Deliver,
        router.Receipt,
    ),
    "store": (StreamDefinition, PublisherEntry, SubscriberEntry, DerivedEntry),
    "journal": RECORDS.kinds,
}
LATER = "of a later release"


def shapes_of(family: str) -> list[Shape]:
    """All structs of a family, those inside others too, by name."""
    roots = (*ROOTS.get(family, ()), *(kind for kind in MESSAGES.kinds if FAMILY_OF[kind] == family))
    found: dict[Shape, None] = {}
    pending = list(roots)
    while pending:
        shape = pending.pop()
        if shape not in found:
            found[shape] = None
            for each in fields_of(shape):
                pending += _structs_in(each.type)
    return sorted(found, key=name_of)


def _structs_in(kind: Any) -> Iterator[Shape]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for each in typing.get_args(kind):
        yield from _structs_in(each)


def name_of(shape: Shape) -> str:
    """What a shape is called in its bytes; where it has no name there, that of its class."""
    tag = shape.__struct_config__.tag
    return shape.__name__ if tag is None else str(tag)


def described(shape: Shape) -> list[str]:
    """The fields of a shape in the order of its bytes, with their types; `=` marks a default."""
    fields = fields_of(shape)
    return [f"{each.name}: {_type_text(each.type)}{'' if each.required else ' ='}" for each in fields]


def _type_text(kind: Any) -> str:
    """A type by what its bytes are, whatever aliases it has in the code."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return name_of(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _type_text(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(sorted(map(_type_text, arguments)))
    if origin is typing.Literal:
        return " or ".join(sorted(map(repr, arguments)))
    if origin is not None:
        return f"{origin.__name__}[{', '.join('…' if each is ... else _type_text(each) for each in arguments)}]"
    return str(kind.__name__) if isinstance(kind, type) else str(kind)


def newer(thing: Any) -> Any:
    """A thing as plain arrays, as a release would write it that has one more field in every shape."""
    if isinstance(thing, msgspec.Struct):
        config = thing.__struct_config__
        values = [newer(getattr(thing, name)) for name in thing.__struct_fields__]
        if config.array_like:
            return [*([] if config.tag is None else [config.tag]), *values, LATER]
        tagged = {} if config.tag is None else {config.tag_field: config.tag}
        return {**tagged, **dict(zip(thing.__struct_encode_fields__, values, strict=True)), LATER: LATER}
    if isinstance(thing, tuple | list):
        return [newer(each) for each in thing]
    if isinstance(thing, dict):
        return {key: newer(value) for key, value in thing.items()}
    return bytes(thing) if isinstance(thing, bytes) else thing


def without_defaults(thing: msgspec.Struct) -> tuple[Any, msgspec.Struct]:
    """A thing as a release would write it that lacks the last fields, those with defaults; and what must be read."""
    fields = list(fields_of(type(thing)))
    left_out: dict[str, Any] = {}
    while fields and not fields[-1].required:
        each = fields.pop()
        made = each.default_factory is not msgspec.NODEFAULT
        left_out[each.name] = each.default_factory() if made else each.default
    config = thing.__struct_config__
    values = [getattr(thing, each.name) for each in fields]
    written: Any = [*([] if config.tag is None else [config.tag]), *values]
    if not config.array_like:
        tagged = {} if config.tag is None else {config.tag_field: config.tag}
        written = {**tagged, **{each.encode_name: value for each, value in zip(fields, values, strict=True)}}
    return written, msgspec.structs.replace(thing, **left_out)


def page(families: Iterable[str]) -> str:
    """All that is spoken, as text: a line for each family with its version, a line for each of its shapes."""
    lines = []
    for family in families:
        lines.append(f"{family} {VERSIONS.get(family, Span(1, 1)).newest}")
        lines += [f"  {name_of(shape)} | {' | '.join(described(shape))}" for shape in shapes_of(family)]
    return "".join(f"{line}\n" for line in lines)


def read_page(text: str) -> dict[str, tuple[int, dict[str, list[str]]]]:
    """The version and the shapes of each family, as a page tells them."""
    told: dict[str, tuple[int, dict[str, list[str]]]] = {}
    for line in text.splitlines():
        if not line.startswith(" "):
            family, version = line.split()
            told[family] = (int(version), {})
        else:
            name, _, fields = line.strip().partition(" | ")
            told[family][1][name.removesuffix(" |")] = fields.split(" | ") if fields else []
    return told
