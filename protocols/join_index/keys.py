"""The keys of the join index: the paper's AIndex and VIndex, for values of any type.

`=` compares numbers exactly, so the text of a number says its exact value: 7, 7.0 and 7.00 have one text and meet at
one evaluator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from protocols.ids import ID_BITS, ID_BYTES, Key, framed
from protocols.join_index.messages import Attribute, ValueText
from queries.expressions import EPOCH, MICROSECOND
from queries.schema import Row, Schema

NULL: Final[ValueText] = ""
_TEXT_MAX: Final = 64  # A longer value is replaced by its digest.
_KEYS_MAX: Final = 1 << 20  # Remembered, since frequent values come again.


def value_text(value: Any) -> ValueText:
    """The text that all values equal to this one share. Null and NaN, which equal nothing, have the text of null.

    A join on several columns compares tuples of values. Where one of them is null, the tuple equals nothing.

    >>> value_text(7) == value_text(7.0) == value_text(Decimal("7.00")), value_text(0.5), value_text("7")
    (True, 'n1/2', 's7')
    >>> value_text((7, "x")) == value_text((7.0, "x")), value_text((7, "x")), value_text((7, None))
    (True, 'c2:n72:sx', '')
    """
    if type(value) is int:  # Most values are, and this is asked of every tuple.
        return f"n{value}"
    match value:
        case None:
            return NULL
        case bool():
            return f"b{value:d}"
        case int():
            return f"n{value}"
        case float() if not math.isfinite(value):
            return NULL if math.isnan(value) else f"f{value}"
        case float() | Decimal():
            return f"n{Fraction(value)}"
        case str():
            return _short("s", value.encode(), value)
        case bytes():
            return _short("x", value, value.hex())
        case datetime():
            return f"t{(value - EPOCH) // MICROSECOND}"
        case timedelta():
            return f"i{value // MICROSECOND}"
        case tuple():
            return joined_text([value_text(each) for each in value])
    raise AssertionError(f"no text for a {type(value).__name__}")


def joined_text(texts: Sequence[ValueText]) -> ValueText:
    """The text of several values taken as one. A single value keeps its own."""
    if NULL in texts:
        return NULL
    if len(texts) == 1:
        return texts[0]
    together = "".join([f"{len(each)}:{each}" for each in texts])
    return _short("c", together.encode(), together)


def _short(kind: str, raw: bytes, text: str) -> ValueText:
    return kind + text if len(text) <= _TEXT_MAX else f"{kind}#{sha256(raw).hexdigest()}"


def attribute_key(at: Attribute, replica: int = 0) -> Key:
    """AIndex, and the replication identifiers of section 7.

    Replicas differ in their highest bits, so each lies in a part of the key space of its own. Where every part has a
    peer, no peer has two replicas. The paper moves peers to the same end.
    """
    first = Key.of("attribute", at.relation, *at.path)
    if not replica:
        return first
    turned = int(f"{replica:b}"[::-1], 2) << (ID_BITS - replica.bit_length())
    return Key((first.number ^ turned).to_bytes(ID_BYTES, "big"))


@lru_cache(maxsize=_KEYS_MAX)
def value_key(at: Attribute | None, value: ValueText) -> Key:
    """VIndex: by relation, attribute and value; in DAI-V by the value alone."""
    return Key.of("value", value) if at is None else Key.of("value", at.relation, *at.path, value)


def value_points(at: Attribute | None) -> Callable[[ValueText], int]:
    """VIndex of one attribute as a number, for one value after the other: `value_key(at, value).number`."""
    before = framed("value") if at is None else framed("value", at.relation, *at.path)

    def point(value: ValueText) -> int:
        raw = value.encode()
        return int.from_bytes(sha256(before + len(raw).to_bytes(4, "big") + raw).digest()[:ID_BYTES], "big")

    return point


def at_path(schema: Schema, row: Row, path: tuple[str, ...]) -> Any:
    """The value of an attribute. Inside a record that is null it is null."""
    fields = schema.fields
    value: Any = row
    for name in path:
        if value is None:
            return None
        place = next(place for place, each in enumerate(fields) if each.name == name)
        fields, value = fields[place].fields, value[place]
    return value
