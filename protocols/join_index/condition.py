"""The join of a query as the index sees it: two sides that must be equal, and what else must hold.

T1: each side is an attribute, or can be solved for one, so that the value of one side finds the tuples of the other.
T2: a side is any other expression; only DAI-V runs these, by the value that both sides have.
A join with several equalities is indexed by all of type T1 together, or by all of T2 if there are no others: two tuples
meet only where all of them hold, whatever the order of the text.

The index runs a join only if two tuples alone decide whether they make a result. A window of time over publication
time, without SLIDE, allows that. A window of rows, over event time, or with SLIDE needs the stream in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from protocols.clock import Stamp, wall_ms
from protocols.delivery.messages import Origin
from protocols.errors import RemoteProtocolError
from protocols.ids import Millis
from protocols.join_index.messages import (
    Attribute,
    JoinQuery,
    Side,
)
from protocols.subgraphs import Algorithm
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
from queries.linear import attribute_of, is_t1, solved
from queries.plan import Operator, Project, Source, output_schema, sources
from queries.schema import MISFITS, Row, Schema
from queries.sound import UnsoundPlan, check_plan


class NotIndexed(RemoteProtocolError):
    """The join index cannot run this query; says why."""


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One side of the join condition."""

    source: Source
    expressions: tuple[Expression, ...]  # One for each equality.
    attribute: Attribute  # Its tuples are found by this one: the paper's IndexA. It has one path for each equality.
    signature: bytes  # The expressions without their alias.

    @property
    def window_ms(self) -> Millis | None:
        window = self.source.window
        return None if window is None else -(-int(window.size) // 1000)


@dataclass(frozen=True, slots=True)
class JoinCondition:
    """The equalities that a query is indexed by, and all that must hold of two tuples."""

    sides: tuple[JoinSide, JoinSide]
    type: Literal["T1", "T2"]
    predicate: Expression
    plan: Project
    rest: Expression | None  # What is left to check of two tuples with equal values.

    @property
    def signature(self) -> bytes:
        """Equal for queries with equal join conditions."""
        return msgspec.msgpack.encode([[str(side.attribute), side.signature] for side in self.sides])


def condition_of(plan: Operator, equalities_max: int | None = None) -> JoinCondition:
    """The join condition of a plan, by so many of its equalities, or by all; raises NotIndexed."""
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
    one_each = [part for part in equalities if is_t1(part)]
    keyed = _distinct([_equality(part, both) for part in one_each or equalities])[:equalities_max]
    left, right = (_side(source, [each.sides[place] for each in keyed]) for place, source in enumerate(both))
    predicate = conjunction(every)
    assert predicate is not None, "the equality is a part of it"
    decided = [each.part for each in keyed if each.is_plain]  # Equal values say that these hold.
    rest = conjunction(tuple(part for part in every if part not in decided))
    return JoinCondition((left, right), "T1" if one_each else "T2", predicate, plan, rest)


def check(plan: Operator, algorithm: str, equalities_max: int | None = None) -> JoinCondition:
    """The join condition of a plan that an algorithm can run; raises NotIndexed."""
    condition = condition_of(plan, equalities_max)
    if algorithm != "dai-v" and condition.type == "T2":
        raise NotIndexed(f"{algorithm} needs an equality that one attribute of each side decides; dai-v does not")
    return condition


def checked(query: JoinQuery) -> JoinCondition:
    """The join condition of a query that another peer may have sent; raises NotIndexed."""
    try:
        check_plan(query.plan)
    except UnsoundPlan as error:
        raise NotIndexed(f"its plan makes no sense: {error}") from error
    return check(query.plan, query.algorithm)


def algorithm_for(plan: Operator) -> Algorithm | None:
    """The algorithm for a plan where the user has named none; None: it does not go through the index.

    It is the one that sends least: a tuple costs one message in SAI and DAI-V, two in DAI-Q and DAI-T. The statistics
    of its streams may speak for another one (choice.py). A join with windows goes through the index only on request.
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
        raise NotIndexed(
            f"{source.alias} goes by event time: which tuples are late is known only with the stream in one place"
        )


def _check_times(both: Sequence[Source], expressions: Sequence[Expression]) -> None:
    read = [column.input for each in expressions for column in columns_of(each) if column.path == (TIME,)]
    for source in both:
        if source.event_time is not None and source.alias in read:
            raise NotIndexed(
                f"it asks for the time of {source.alias}, which goes by event time; the index goes by publication time"
            )


class _Equality(NamedTuple):
    """An equality of the two streams, its sides in their order."""

    part: Call
    sides: tuple[Expression, Expression]

    @property
    def is_plain(self) -> bool:
        """Whether it compares one attribute with another."""
        return all(isinstance(side, Column) and not side.path[0].startswith("$") for side in self.sides)


def _equality(part: Call, both: Sequence[Source]) -> _Equality:
    by_alias = {inputs_of(side)[0]: side for side in part.arguments}
    left, right = (by_alias[source.alias] for source in both)
    return _Equality(part, (left, right))


def _distinct(equalities: Iterable[_Equality]) -> list[_Equality]:
    """In an order that does not depend on the text, plain ones first; one for each pair of attributes of type T1.

    Another one of the same two attributes tells no further tuples apart: it is left to check.
    """
    found: dict[Any, _Equality] = {}
    for each in sorted(equalities, key=lambda each: (not each.is_plain, [_signature(side) for side in each.sides])):
        attributes = tuple(attribute_of(side) for side in each.sides)
        found.setdefault(attributes if None not in attributes else each.sides, each)
    return list(found.values())


def _side(source: Source, expressions: Sequence[Expression]) -> JoinSide:
    # Rows of two versions differ in their columns: queries of one version do not meet those of another.
    version = source.schema.version
    relation = source.stream if version == 1 else f"{source.stream}@{version}"
    attribute = Attribute.of(relation, [_path(source, each) for each in expressions])
    return JoinSide(source, tuple(expressions), attribute, b"".join(map(_signature, expressions)))


def _path(source: Source, expression: Expression) -> tuple[str, ...]:
    paths = [column.path for column in columns_of(expression) if not column.path[0].startswith("$")]
    return paths[0] if paths else (source.schema.fields[0].name,)


def _signature(expression: Expression) -> bytes:
    """The expression without its alias."""

    def without_alias(node: Expression) -> Expression:
        return msgspec.structs.replace(node, input="") if isinstance(node, Column) else node

    return msgspec.msgpack.encode(rewritten(expression, without_alias))


_Values = tuple[tuple[OnRow, ...], tuple[OnRow, ...]]


def searched_values(condition: JoinCondition, algorithm: str) -> _Values:
    """For each side and equality, a function from rows of the side to the value that finds their partners."""
    left, right = condition.sides
    pairs = list(zip(left.expressions, right.expressions, strict=True))
    if algorithm != "dai-v":  # The other side's tuples are found by its attribute, so its side is solved for that.
        pairs = [(solved(other, one), solved(one, other)) for one, other in pairs]
    return (
        tuple(on_row(one, left.source.columns) for one, _ in pairs),
        tuple(on_row(other, right.source.columns) for _, other in pairs),
    )


def together(values: Sequence[OnRow]) -> OnRow:
    """A function from rows to all these values taken as one; a single one stays as it is."""
    if len(values) == 1:
        return values[0]
    return lambda row: tuple([value(row) for value in values])


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledJoin:
    """A query with its join condition compiled."""

    query: JoinQuery
    condition: JoinCondition
    values: _Values  # From a side's row to the values that find its partners.
    schema: Schema  # Of the results.

    @classmethod
    def of(cls, query: JoinQuery) -> CompiledJoin:
        """Compile a query, once for all parts of this peer; raises NotIndexed."""
        found = _COMPILED.get(query)
        if found is None:
            condition = checked(query)
            values = searched_values(condition, query.algorithm)
            found = _COMPILED[query] = cls(query, condition, values, output_schema(condition.plan))
        return found

    def side(self, side: Side) -> JoinSide:
        return self.condition.sides[side]

    @property
    def attributes(self) -> tuple[Attribute, Attribute]:
        left, right = self.condition.sides
        return left.attribute, right.attribute

    def by(self, algorithm: Algorithm) -> CompiledJoin:
        """The same query by another algorithm."""
        return CompiledJoin.of(msgspec.structs.replace(self.query, algorithm=algorithm))


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """A query compiled for pairs of tuples with equal values."""

    rest: OnRow | None  # What else must hold of a pair.
    shown: Callable[[Sequence[Row]], list[Row]]  # From pairs to result rows.
    schema: Schema
    aliases: tuple[str, str]
    covered: dict[tuple[str, Origin], int] = field(repr=False)  # An earlier attempt has covered the tuples below these.

    @classmethod
    def of(cls, query: JoinQuery, rest: Expression | None, aliases: tuple[str, str]) -> Meeting:
        """For a query whose condition has been found."""
        plan = query.plan
        assert isinstance(plan, Project)
        columns = plan.input.columns
        return cls(
            None if rest is None else on_row(rest, columns),
            _shown([each.expression for each in plan.outputs], columns),
            output_schema(plan),
            aliases,
            {(reach.alias, reach.origin): reach.next for reach in query.resume},
        )

    def has_covered(self, side: Side, origin: Origin, sequence: int) -> bool:
        """Whether an earlier attempt has covered this tuple."""
        return sequence < self.covered.get((self.aliases[side], origin), 0)


def _shown(outputs: Sequence[Expression], columns: Sequence[Column]) -> Callable[[Sequence[Row]], list[Row]]:
    """From pairs to result rows; null for what cannot be computed of rows that are not of their schema.

    Results of several queries are made together, so those of one must not keep the others from being told.
    """
    together, apart = project_on_batch(outputs, columns), [on_row(each, columns) for each in outputs]

    def value(of: OnRow, row: Row) -> Any:
        try:
            return of(row)
        except MISFITS:
            return None

    def shown(rows: Sequence[Row]) -> list[Row]:
        try:
            return together(rows)
        except MISFITS:
            return [tuple([value(each, row) for each in apart]) for row in rows]

    return shown


def time_of(stamp: Stamp) -> datetime:
    """TIME of a tuple without event time."""
    return EPOCH + timedelta(milliseconds=wall_ms(stamp))


def timed_rows(schema: Schema, rows: bytes, stamp: Stamp) -> list[Row | None]:
    """The rows of a batch with TIME; None for one that no query reads, for its decimals."""
    time, decoded = (time_of(stamp),), schema.decode(rows)
    if len(schema.held(decoded)) == len(decoded):
        return [row + time for row in decoded]
    return [row + time if schema.held([row]) else None for row in decoded]


_COMPILED: Final[WeakValueDictionary[JoinQuery, CompiledJoin]] = WeakValueDictionary()
