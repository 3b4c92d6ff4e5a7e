"""A query compiled for the paper's machines: what it makes of one tuple, and of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from experiments.cqdht.messages import JoinQuery, Notification, StreamTuple, TupleId
from protocols.clock import Stamp
from protocols.ids import Millis
from protocols.join_index.condition import JoinCondition, JoinSide, check, searched_values, time_of, together
from protocols.join_index.keys import at_path, value_text
from protocols.join_index.messages import LEFT, RIGHT, Side, ValueText
from queries.compile import OnRow, on_row
from queries.expressions import Column, Expression, columns_of, conjunction, conjuncts, inputs_of
from queries.plan import Source, output_schema
from queries.reference import Result
from queries.schema import Row, Schema

Order = tuple[Stamp, TupleId, Side]


@dataclass(frozen=True, slots=True)
class Item:
    """A tuple on one side of a join. Its row ends with TIME."""

    tuple: StreamTuple
    side: Side
    row: Row

    @property
    def order(self) -> Order:
        """Orders all tuples alike on every peer. A tuple that meets itself is on the left first."""
        return self.tuple.published_at, self.tuple.id, self.side


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ReadyQuery:
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

    @classmethod
    def of(cls, query: JoinQuery) -> ReadyQuery:
        """Compile a query, once for all parts of a peer; raises NotIndexed."""
        found = _READY.get(query)
        if found is None:
            found = _READY[query] = cls._compiled(query)
        return found

    @classmethod
    def _compiled(cls, query: JoinQuery) -> ReadyQuery:
        condition = check(query.plan, query.algorithm, equalities_max=1)  # As in the paper.
        plan = condition.plan
        expressions = (*(each.expression for each in plan.outputs), condition.predicate)
        left, right = condition.sides
        values = searched_values(condition, query.algorithm)
        return cls(
            query,
            condition,
            (together(values[LEFT]), together(values[RIGHT])),
            (_selection(condition, LEFT), _selection(condition, RIGHT)),
            on_row(condition.predicate, plan.input.columns),
            tuple(on_row(each.expression, plan.input.columns) for each in plan.outputs),
            output_schema(plan),
            (_needed(expressions, left.source), _needed(expressions, right.source)),
            (_shown(expressions, left.source), _shown(expressions, right.source)),
        )

    def side(self, side: Side) -> JoinSide:
        return self.condition.sides[side]

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
        """What a query reads of a tuple: tuples that agree in it are equal triggers."""
        return repr([each(item.row) for each in self.needed[item.side]]).encode()

    def meet(self, one: Item, other: Item) -> Notification | None:
        """The result that two tuples on different sides make, if they do."""
        left, right = (one, other) if one.side == LEFT else (other, one)
        if min(left.tuple.published_at, right.tuple.published_at) < self.query.inserted_at:
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


def _everything(_: Row) -> bool:
    return True


def _selection(condition: JoinCondition, side: Side) -> OnRow:
    """What must hold of one side alone, as a function of its rows."""
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


_READY: Final[WeakValueDictionary[JoinQuery, ReadyQuery]] = WeakValueDictionary()
