"""Makes an instance of any wire type from its annotations: a fixed one for golden bytes, or a random one."""

from __future__ import annotations

import random
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from protocols.catalogue.streams import Alteration
from protocols.clock import Stamp
from protocols.ids import Key, PeerId
from queries import sql
from queries.catalogue import Stream
from queries.expressions import Expression
from queries.plan import Choice, Each, Element, Operator, Output, Project, Select, Source, Template, sources, walk
from queries.schema import Field, Schema
from tests.structs import fields_of

ADDED = tuple(Schema.parse("added float null, further record(a int, b string null) null").fields)
SCHEMAS = (
    Schema.parse("id int, note string null"),
    Schema.parse("at timestamp, price decimal, ok bool"),
    Schema.parse("raw bytes null, delay float").adding(ADDED[0]).dropping("delay"),
)
STREAMS = {"s": Stream("s", Schema.parse("id int, at timestamp, note string null"), "at")}
PLANS = tuple(
    sql.plan(text, STREAMS).plan
    for text in (
        "SELECT id FROM s WHERE note LIKE 'a%' AND id < 2.5",
        "SELECT a.id, b.note FROM s [RANGE 5 MINUTES] a, s [ROWS 20] b WHERE a.id + 1 = b.id",
        "SELECT note, count(*) AS n FROM s [RANGE 2 HOURS SLIDE 1 HOUR] GROUP BY note HAVING count(*) > 2",
        "SELECT id FROM s UNION ALL SELECT id * 2 FROM s WHERE at > TIMESTAMP '2026-01-01T00:00:00Z'",
    )
)
SOURCES = tuple(source for plan in PLANS for source in sources(plan))
EXPRESSIONS = tuple(
    expression
    for plan in PLANS
    for each in walk(plan)
    for expression in (
        *((named.expression for named in each.outputs) if isinstance(each, Project) else ()),
        *((each.predicate,) if isinstance(each, Select) else ()),
    )
)
_NOTE = Output(EXPRESSIONS[0], "note")
TEMPLATES = (
    Element("r", (_NOTE, Output(EXPRESSIONS[-1]))),
    Choice(EXPRESSIONS[0], (_NOTE,), (Element("none"),)),
    Each("each", EXPRESSIONS[0], None, (_NOTE,)),
)


def make(kind: Any, luck: random.Random | None = None) -> Any:  # noqa: C901 - one branch for each kind
    """An instance of a type; without luck always the same."""
    if isinstance(kind, type) and issubclass(kind, Key):
        return kind(luck.randbytes(20) if luck else bytes(range(20)))
    if kind is Schema:  # Not every combination of fields is one.
        return luck.choice(SCHEMAS) if luck else SCHEMAS[0]
    if kind is Field:
        return luck.choice(ADDED) if luck else ADDED[0]
    if kind == Operator:  # A tree of any old operators is no plan.
        return luck.choice(PLANS) if luck else PLANS[0]
    if kind is Source:
        return luck.choice(SOURCES) if luck else SOURCES[0]
    if kind == Expression:
        return luck.choice(EXPRESSIONS) if luck else EXPRESSIONS[0]
    if kind == Template:  # They nest without end.
        return luck.choice(TEMPLATES) if luck else TEMPLATES[0]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{each.name: make(each.type, luck) for each in fields_of(kind)})
    if kind == tuple[Alteration, ...]:  # They follow from the columns of their stream.
        return (Alteration(asked_at=make(Stamp, luck), asked_by=make(PeerId, luck), adds=ADDED[1]),)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return make(arguments[0], luck)
    if origin in (typing.Union, types.UnionType):
        return make(luck.choice(arguments) if luck else arguments[0], luck)
    if origin is Literal:
        return luck.choice(arguments) if luck else arguments[0]
    if origin is tuple:
        if arguments[-1] is ...:
            return tuple(make(arguments[0], luck) for _ in range(luck.randrange(4) if luck else 2))
        return tuple(make(each, luck) for each in arguments)
    return SIMPLE[kind](luck)


SIMPLE: dict[Any, Callable[[random.Random | None], Any]] = {
    int: lambda luck: luck.randrange(1 << luck.randrange(1, 53)) if luck else 7,
    float: lambda luck: luck.uniform(0, 1e6) if luck else 0.5,
    str: lambda luck: "".join(luck.choices("aé漢 /\0", k=luck.randrange(6))) if luck else "name",
    bytes: lambda luck: luck.randbytes(luck.randrange(40)) if luck else b"\x01\x02",
    bool: lambda luck: luck.random() < 0.5 if luck else True,
    type(None): lambda luck: None,
}
