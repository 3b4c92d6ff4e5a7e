"""The join of a query as the index sees it: two sides that must be equal, and what else must hold.

T1: a side is an attribute, or can be solved for one, so its tuples are found by the value of the other side. T2: a side
is any expression; both sides go to the peer of the value they have (DAI-V). Only what two tuples decide alone can be
indexed: a window of time without SLIDE over publication time. A window of rows, of event time, or one that slides
needs the stream in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal
from weakref import WeakValueDictionary

import msgspec

from protocols.clock import Stamp, wall_ms
from protocols.delivery.messages import Origin
from protocols.errors import RemoteProtocolError
from protocols.ids import Millis
from protocols.join_index.keys import at_path, value_text
from protocols.join_index.messages import (
    LEFT,
    RIGHT,
    Algorithm,
    Attribute,
    JoinQuery,
    Notification,
    Side,
    StreamTuple,
    TupleId,
    ValueText,
)
from queries.binder import is_equi_join
from queries.canonical import flattened
from queries.compile import OnRow, on_row, project_on_batch
from queries.expressions import (
    EPOCH,
    TIME,
    Call,
    Column,
    Expression,
    columns_of,
    conjunction,
    conjuncts,
    inputs_of,
    rewritten,
)
from queries.linear import is_t1, solved
from queries.plan import Operator, Project, Source, output_schema, sources
from queries.reference import Result
from queries.schema import Row, Schema

Order = tuple[Stamp, TupleId, Side]


class NotIndexed(RemoteProtocolError):
    """The join index cannot run this query; says why."""


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One side of the join condition."""

    source: Source
    expression: Expression
    attribute: Attribute  # Its tuples are looked for under this one: the paper's IndexA.
    signature: bytes  # What the expression says, whatever the alias.

    @property
    def window_ms(self) -> Millis | None:
        window = self.source.window
        return None if window is None else -(-int(window.size) // 1000)


@dataclass(frozen=True, slots=True)
class JoinCondition:
    """The equality that a query is indexed by, and everything that must hold of a pair."""

    sides: tuple[JoinSide, JoinSide]
    type: Literal["T1", "T2"]
    predicate: Expression
    plan: Project
    rest: Expression | None  # What is left of the predicate for two tuples that are known to have one value.

    @property
    def signature(self) -> bytes:
        """The same for queries with equivalent join conditions, written alike."""
        return msgspec.msgpack.encode([[str(side.attribute), side.signature] for side in self.sides])


def condition_of(plan: Operator) -> JoinCondition:
    """The join condition of a plan; raises NotIndexed."""
    if not isinstance(plan, Project):
        raise NotIndexed("only a plain join can be indexed: no aggregate, no union, no XML")
    inputs, parts = flattened(plan.input)
    if len(inputs) != 2 or not all(isinstance(each, Source) for each in inputs):
        raise NotIndexed("only a join of two streams can be indexed")
    both = tuple(each for each in inputs if isinstance(each, Source))
    for source in both:
        _check_window(source)
    every = tuple(part for each in parts for part in conjuncts(each))
    _check_times(both, (*every, *(each.expression for each in plan.outputs)))
    equalities = [part for part in every if isinstance(part, Call) and is_equi_join(part)]
    if not equalities:
        raise NotIndexed("a join is indexed by an equality between an expression of each stream; there is none")
    plain = [part for part in equalities if all(map(_is_attribute, part.arguments))]
    one_each = plain or [part for part in equalities if is_t1(part)]
    chosen = (one_each or equalities)[0]
    by_alias = {inputs_of(side)[0]: side for side in chosen.arguments}
    left, right = (_side(source, by_alias[source.alias]) for source in both)
    predicate = conjunction(every)
    assert predicate is not None, "the equality is a part of it"
    rest = conjunction(tuple(part for part in every if part is not chosen)) if plain else predicate
    return JoinCondition((left, right), "T1" if one_each else "T2", predicate, plan, rest)


def check(plan: Operator, algorithm: str) -> JoinCondition:
    """The join condition of a plan that an algorithm can run; raises NotIndexed."""
    condition = condition_of(plan)
    if algorithm != "dai-v" and condition.type == "T2":
        raise NotIndexed(f"{algorithm} needs an equality that one attribute of each side decides; dai-v does not")
    return condition


def algorithm_for(plan: Operator) -> Algorithm | None:
    """The algorithm for a plan that nobody chose one for: the one that sends least. None: it is not for the index.

    Where evaluators are known, a tuple costs one message in SAI and DAI-V, two in DAI-Q and DAI-T; what is known of its
    streams may speak for another (choice.py). A join with windows goes through the index if that is asked for.
    """
    if any(source.window is not None for source in sources(plan)):
        return None
    try:
        return "sai" if condition_of(plan).type == "T1" else "dai-v"
    except NotIndexed:
        return None


def _check_window(source: Source) -> None:
    window = source.window
    if window is None:
        return
    if window.kind != "time" or window.slide is not None:
        raise NotIndexed(f"{window} of {source.alias} needs the stream in one place; [RANGE …] without SLIDE does not")
    if source.event_time is not None:
        raise NotIndexed(f"{source.alias} goes by event time: who is late is only known with the stream in one place")


def _check_times(both: Sequence[Source], expressions: Sequence[Expression]) -> None:
    read = [column.input for each in expressions for column in columns_of(each) if column.path == (TIME,)]
    for source in both:
        if source.event_time is not None and source.alias in read:
            raise NotIndexed(
                f"it asks for the time of {source.alias}, which goes by event time; the index by publication"
            )


def _is_attribute(side: Expression) -> bool:
    return isinstance(side, Column) and not side.path[0].startswith("$")


def _side(source: Source, expression: Expression) -> JoinSide:
    paths = [column.path for column in columns_of(expression) if not column.path[0].startswith("$")]
    path = paths[0] if paths else (source.schema.fields[0].name,)

    def without_alias(node: Expression) -> Expression:
        return msgspec.structs.replace(node, input="") if isinstance(node, Column) else node

    signature = msgspec.msgpack.encode(rewritten(expression, without_alias))
    return JoinSide(source, expression, Attribute(source.stream, path), signature)


@dataclass(frozen=True, slots=True)
class Item:
    """A tuple in a place of a join, read: its row with TIME."""

    tuple: StreamTuple
    side: Side
    row: Row

    @property
    def order(self) -> Order:
        """One order of all tuples that every peer knows; a tuple that meets itself is on the left first."""
        return self.tuple.published_at, self.tuple.id, self.side


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Prepared:
    """A query ready to look at tuples."""

    query: JoinQuery
    condition: JoinCondition
    values: tuple[OnRow, OnRow]  # Of the sides of the equality; for T1, what the other side's attribute must be.
    selections: tuple[OnRow, OnRow]  # What must hold of a side alone.
    predicate: OnRow
    outputs: tuple[OnRow, ...]
    schema: Schema  # Of the results.
    needed: tuple[tuple[OnRow, ...], tuple[OnRow, ...]] = field(repr=False)  # The columns of each side it reads.
    shows: tuple[bytes, bytes] = field(repr=False)  # Their names.
    known: dict[tuple[str, Origin], int] = field(repr=False)  # Below which the tuples of a side have met each other.

    @classmethod
    def of(cls, query: JoinQuery) -> Prepared:
        """Compile a query, or find it compiled: it may be here in many places; raises NotIndexed."""
        found = _PREPARED.get(query)
        if found is None:
            found = _PREPARED[query] = cls._compiled(query)
        return found

    @classmethod
    def _compiled(cls, query: JoinQuery) -> Prepared:
        condition = check(query.plan, query.algorithm)
        plan = condition.plan
        values = [side.expression for side in condition.sides]
        if query.algorithm != "dai-v":  # The other side's tuples are looked for by their attribute.
            values = [solved(other, own) for own, other in (values, reversed(values))]
        expressions = (*(each.expression for each in plan.outputs), condition.predicate)
        left, right = condition.sides
        return cls(
            query,
            condition,
            (on_row(values[LEFT], left.source.columns), on_row(values[RIGHT], right.source.columns)),
            (_selection(condition, LEFT), _selection(condition, RIGHT)),
            on_row(condition.predicate, plan.input.columns),
            tuple(on_row(each.expression, plan.input.columns) for each in plan.outputs),
            output_schema(plan),
            (_needed(expressions, left.source), _needed(expressions, right.source)),
            (_shown(expressions, left.source), _shown(expressions, right.source)),
            {(reach.alias, reach.origin): reach.next for reach in query.known},
        )

    def side(self, side: Side) -> JoinSide:
        return self.condition.sides[side]

    @property
    def attributes(self) -> tuple[Attribute, Attribute]:
        left, right = self.condition.sides
        return left.attribute, right.attribute

    def by(self, algorithm: Algorithm) -> Prepared:
        """The same query by another algorithm."""
        return Prepared.of(msgspec.structs.replace(self.query, algorithm=algorithm))

    def read(self, each: StreamTuple, side: Side) -> Item:
        """A tuple as one side of the join has it."""
        (row,) = self.side(side).source.schema.decode(each.row)
        return Item(each, side, (*row, time_of(each.published_at)))

    def is_triggered(self, item: Item) -> bool:
        """Whether a tuple alone allows a result: published after the query was posed, and selected."""
        return item.tuple.published_at >= self.query.inserted_at and self.selections[item.side](item.row) is True

    def is_selective(self, side: Side) -> bool:
        """Whether something must hold of a tuple alone."""
        return self.selections[side] is not _everything

    def value(self, item: Item) -> ValueText:
        """Where the partners of this tuple are: by valJC in DAI-V, else by the attribute of the other side."""
        return value_text(self.values[item.side](item.row))

    def own_value(self, item: Item) -> ValueText:
        """The value of the attribute that a tuple is looked for by."""
        side = self.side(item.side)
        return value_text(at_path(side.source.schema, item.row, side.attribute.path))

    def part_read(self, item: Item) -> bytes:
        """What of a tuple shows in results: tuples that agree in it lead to the same rewritten query."""
        return repr([each(item.row) for each in self.needed[item.side]]).encode()

    def meet(self, one: Item, other: Item) -> Notification | None:
        """The result that two tuples on different sides make, if they do."""
        left, right = (one, other) if one.side == LEFT else (other, one)
        if min(left.tuple.published_at, right.tuple.published_at) < self.query.inserted_at:
            return None
        if self.known and self._is_known(left) and self._is_known(right):
            return None
        if not self._share_a_window(left, right):
            return None
        row = left.row + right.row
        if self.predicate(row) is not True:
            return None
        return self._notification(left, right, row)

    def keep_ms(self, side: Side) -> Millis:
        """How long after its publication a tuple on this side can meet a later one."""
        window = self.side(side).window_ms
        return self.query.retention_ms if window is None else window

    def _is_known(self, item: Item) -> bool:
        each = item.tuple.id
        return each.sequence < self.known.get((self.side(item.side).source.alias, each.origin), 0)

    def _share_a_window(self, left: Item, right: Item) -> bool:
        """Whether the later tuple was published while the earlier was in its window; both ends count."""
        earlier, later = sorted((left, right), key=lambda item: item.row[-1])
        window = self.side(earlier.side).source.window
        age: timedelta = later.row[-1] - earlier.row[-1]
        return window is None or age <= timedelta(microseconds=int(window.size))

    def _notification(self, left: Item, right: Item, row: Row) -> Notification:
        made_of = tuple(sorted((self.side(item.side).source.alias, item.tuple.id) for item in (left, right)))
        named = tuple((alias, (bytes(i.publisher), i.stream, i.epoch, i.sequence)) for alias, i in made_of)
        due = max(left.row[-1], right.row[-1])
        shown = tuple(output(row) for output in self.outputs)
        return Notification(
            self.query.id,
            Result(shown, due, named).notification_id(self.query.id),
            made_of,
            max(left.tuple.published_at, right.tuple.published_at),
            self.schema.encode([shown]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """What two tuples with one value make of a query: no more of it than many meetings need."""

    rest: OnRow | None  # What else must hold of them.
    shown: Callable[[Sequence[Row]], list[Row]]  # Results of many pairs.
    schema: Schema
    aliases: tuple[str, str]
    known: dict[tuple[str, Origin], int] = field(repr=False)  # Below which the tuples of a side have met each other.

    @classmethod
    def of(cls, query: JoinQuery, rest: Expression | None, aliases: tuple[str, str]) -> Meeting:
        """The query is one whose condition was found."""
        plan = query.plan
        assert isinstance(plan, Project)
        columns = plan.input.columns
        return cls(
            None if rest is None else on_row(rest, columns),
            project_on_batch([each.expression for each in plan.outputs], columns),
            output_schema(plan),
            aliases,
            {(reach.alias, reach.origin): reach.next for reach in query.known},
        )

    def has_known(self, side: Side, origin: Origin, sequence: int) -> bool:
        """Whether an earlier attempt has covered a tuple."""
        return sequence < self.known.get((self.aliases[side], origin), 0)


def _everything(_: Row) -> bool:
    return True


def _selection(condition: JoinCondition, side: Side) -> OnRow:
    """What must hold of one side alone, as a value for its rows."""
    source = condition.sides[side].source
    own = tuple(part for part in conjuncts(condition.predicate) if inputs_of(part) in ((), (source.alias,)))
    predicate = conjunction(own)
    return _everything if predicate is None else on_row(predicate, source.columns)


def _read(expressions: Sequence[Expression], source: Source) -> tuple[Column, ...]:
    columns = (column for each in expressions for column in columns_of(each) if column.input == source.alias)
    return tuple(dict.fromkeys(columns))


def _needed(expressions: Sequence[Expression], source: Source) -> tuple[OnRow, ...]:
    return tuple(on_row(column, source.columns) for column in _read(expressions, source))


def _shown(expressions: Sequence[Expression], source: Source) -> bytes:
    return msgspec.msgpack.encode([column.path for column in _read(expressions, source)])


def time_of(stamp: Stamp) -> datetime:
    """TIME of a tuple without event time."""
    return EPOCH + timedelta(milliseconds=wall_ms(stamp))


_PREPARED: Final[WeakValueDictionary[JoinQuery, Prepared]] = WeakValueDictionary()
