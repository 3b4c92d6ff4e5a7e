"""Expressions turned into Python closures once, then run on many rows; no text ever becomes code.

A batch is computed column by column: only the columns that an expression reads are extracted, and where nothing can be
null, `map` runs a C function over them. That is safe because functions are total. A conjunction filters part by part,
cheap parts first, so each part sees only the rows that are left.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, repeat
from typing import Any, Final

from queries.expressions import Call, Column, Constant, Expression, conjuncts
from queries.functions import is_strict, meaning_of
from queries.schema import Row

OnRow = Callable[[Row], Any]
OnRows = Callable[[Sequence[Row]], Iterable[Any]]  # The values of a batch, to be iterated once.
Filter = Callable[[Sequence[Row]], Sequence[Row]]


def on_row(expression: Expression, columns: Sequence[Column]) -> OnRow:
    """The value of an expression for one row with these columns.

    >>> from queries.functions import call
    >>> a, b = Column("r", ("a",), "int"), Column("r", ("b",), "int", nullable=True)
    >>> sum_of = on_row(call("+", a, b), (a, b))
    >>> sum_of((1, 2)), sum_of((1, None))
    (3, None)
    """
    match expression:
        case Column():
            return _getter(_place(expression, columns))
        case Constant():
            value = expression.python
            return lambda _: value
        case Call() if _is_constant(expression):
            value = _folded(expression)
            return lambda _: value
    return _call_on_row(expression, columns)


def on_batch(expression: Expression, columns: Sequence[Column]) -> Callable[[Sequence[Row]], list[Any]]:
    """The values of an expression for rows with these columns, in their order.

    >>> from queries.functions import call
    >>> a = Column("r", ("a",), "int")
    >>> on_batch(call("*", a, Constant(2, "int")), (a,))([(1,), (2,)])
    [2, 4]
    """
    computed = _on_rows(expression, columns)
    return lambda rows: list(computed(rows))


def predicate_on_batch(
    predicate: Expression | None, columns: Sequence[Column]
) -> Callable[[Sequence[Row]], Sequence[Row]]:
    """The rows for which a predicate is true, in order; all rows if there is no predicate."""
    filters = [_filter(part, columns) for part in conjuncts(predicate)]
    steps = [step for _, step in sorted(filters, key=lambda each: not each[0])]

    def kept(rows: Sequence[Row]) -> Sequence[Row]:
        for step in steps:
            rows = step(rows)
        return rows

    return kept


def project_on_batch(outputs: Sequence[Expression], columns: Sequence[Column]) -> Callable[[Sequence[Row]], list[Row]]:
    """Rows of the values of several expressions."""
    places = [_place(output, columns) for output in outputs if isinstance(output, Column)]
    if len(places) == len(outputs) > 1 and all(len(place) == 1 for place in places):
        picked = operator.itemgetter(*(place[0] for place in places))
        return lambda rows: list(map(picked, rows))
    computed = [_on_rows(output, columns) for output in outputs]
    if not computed:
        return lambda rows: [()] * len(rows)
    return lambda rows: list(zip(*(each(rows) for each in computed), strict=True))


# Where a column is.


def _place(column: Column, columns: Sequence[Column]) -> tuple[int, ...]:
    """The index of the column in a row, then of the field in each record on the way."""
    for number, base in enumerate(columns):
        depth = len(base.path)
        if base.input == column.input and base.path == column.path[:depth]:
            place, fields = [number], base.fields
            for name in column.path[depth:]:
                inner = [field.name for field in fields].index(name)
                place.append(inner)
                fields = fields[inner].fields
            return tuple(place)
    raise AssertionError(f"{column} is not among {', '.join(map(str, columns))}")


def _getter(place: tuple[int, ...]) -> OnRow:
    if len(place) == 1:
        return operator.itemgetter(place[0])

    def nested(row: Row) -> Any:
        value: Any = row
        for number in place:
            if value is None:
                return None
            value = value[number]
        return value

    return nested


# Constants.


def _is_constant(expression: Expression) -> bool:
    match expression:
        case Constant():
            return True
        case Call(arguments=arguments):
            return all(_is_constant(argument) for argument in arguments)
    return False


def _folded(expression: Expression) -> Any:
    """The value of an expression without columns."""
    if isinstance(expression, Constant):
        return expression.python
    return _call_on_row(expression, ())(())


def _taken(expression: Call) -> tuple[Callable[..., Any], tuple[Expression, ...]]:
    """The function of a call, and the arguments that it takes."""
    meaning = meaning_of(expression)
    arguments = expression.arguments
    return meaning.value, arguments if meaning.takes is None else tuple(arguments[number] for number in meaning.takes)


# One row.


def _call_on_row(expression: Expression, columns: Sequence[Column]) -> OnRow:
    assert isinstance(expression, Call)
    function, arguments = _taken(expression)
    parts = [on_row(argument, columns) for argument in arguments]
    match expression.function, parts:
        case ("and", _):
            return _first_of(parts, stop=False)
        case ("or", _):
            return _first_of(parts, stop=True)
        case ("in", _) if all(map(_is_constant, arguments[1:])):
            found, otherwise = _items(arguments[1:])
            needle = parts[0]
            return lambda row: None if (value := needle(row)) is None else True if value in found else otherwise
    if not is_strict(expression.function) or not any(argument.nullable for argument in arguments):
        return _plain_on_row(function, parts)
    return _strict_on_row(function, parts)


def _first_of(parts: list[OnRow], *, stop: bool) -> OnRow:
    """Three-valued logic that stops at the first part that decides the result."""

    def value(row: Row) -> bool | None:
        result: bool | None = not stop
        for part in parts:
            truth = part(row)
            if truth is None:
                result = None
            elif truth == stop:
                return stop
        return result

    return value


def _plain_on_row(function: Callable[..., Any], parts: list[OnRow]) -> OnRow:
    match parts:
        case [a]:
            return lambda row: function(a(row))
        case [a, b]:
            return lambda row: function(a(row), b(row))
    return lambda row: function(*[part(row) for part in parts])


def _strict_on_row(function: Callable[..., Any], parts: list[OnRow]) -> OnRow:
    match parts:
        case [a]:
            return lambda row: None if (x := a(row)) is None else function(x)
        case [a, b]:
            return lambda row: None if (x := a(row)) is None or (y := b(row)) is None else function(x, y)

    def value(row: Row) -> Any:
        given = [part(row) for part in parts]
        return None if any(each is None for each in given) else function(*given)

    return value


def _items(constants: Sequence[Expression]) -> tuple[frozenset[Any], bool | None]:
    """The values of an IN list, and the result for any other value: null if the list has a null, else false."""
    items = [_folded(constant) for constant in constants]
    return frozenset(item for item in items if item is not None), None if None in items else False


# A batch.


def _on_rows(expression: Expression, columns: Sequence[Column]) -> OnRows:
    match expression:
        case Column():
            return _column_of(expression, columns)
        case Constant():
            return _repeated(expression.python)
        case Call() if _is_constant(expression):
            return _repeated(_folded(expression))
    assert isinstance(expression, Call)
    function, arguments = _taken(expression)
    parts = [_on_rows(argument, columns) for argument in arguments]
    special = _special_on_rows(expression, arguments, parts)
    if special is not None:
        return special
    nulls = is_strict(expression.function) and any(argument.nullable for argument in arguments)
    if not nulls:
        return lambda rows: map(function, *(part(rows) for part in parts))
    return _strict_on_rows(function, arguments, parts)


def _column_of(column: Column, columns: Sequence[Column]) -> OnRows:
    place = _place(column, columns)
    getter = _getter(place)
    return lambda rows: map(getter, rows)


def _repeated(value: Any) -> OnRows:
    return lambda rows: repeat(value, len(rows))


def _special_on_rows(expression: Call, arguments: Sequence[Expression], parts: list[OnRows]) -> OnRows | None:
    """Calls that are faster in a comprehension of their own than by a function call for each row."""
    match expression.function, parts:
        case ("is_null", [a]):
            return lambda rows: [x is None for x in a(rows)]
        case ("and", [a, b]) if not expression.nullable:
            return lambda rows: map(operator.and_, a(rows), b(rows))
        case ("or", [a, b]) if not expression.nullable:
            return lambda rows: map(operator.or_, a(rows), b(rows))
        case ("case", [condition, a, b]):
            return lambda rows: [x if true else y for true, x, y in zip(condition(rows), a(rows), b(rows), strict=True)]
        case ("coalesce", [a, b]):
            return lambda rows: [y if x is None else x for x, y in zip(a(rows), b(rows), strict=True)]
        case ("in", [needle, *_]) if all(map(_is_constant, arguments[1:])):
            found, otherwise = _items(arguments[1:])
            return lambda rows: [None if x is None else True if x in found else otherwise for x in needle(rows)]
    return None


def _strict_on_rows(function: Callable[..., Any], arguments: Sequence[Expression], parts: list[OnRows]) -> OnRows:
    match arguments, parts:
        case _, [a]:
            return lambda rows: [None if x is None else function(x) for x in a(rows)]
        case [_, Constant(nullable=False) as constant], [a, _]:
            y = constant.python
            return lambda rows: [None if x is None else function(x, y) for x in a(rows)]
        case _, [a, b]:
            return lambda rows: [
                None if x is None or y is None else function(x, y) for x, y in zip(a(rows), b(rows), strict=True)
            ]
    return lambda rows: [
        None if None in given else function(*given) for given in zip(*(part(rows) for part in parts), strict=True)
    ]


# Selection. Most predicates compare a column with a constant, so those have their own comprehensions.

_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_KEEP: Final[dict[str, Callable[[Sequence[Row], int, Any], list[Row]]]] = {
    "=": lambda rows, at, constant: [row for row in rows if row[at] == constant],
    "<>": lambda rows, at, constant: [row for row in rows if row[at] != constant],
    "<": lambda rows, at, constant: [row for row in rows if row[at] < constant],
    "<=": lambda rows, at, constant: [row for row in rows if row[at] <= constant],
    ">": lambda rows, at, constant: [row for row in rows if row[at] > constant],
    ">=": lambda rows, at, constant: [row for row in rows if row[at] >= constant],
}


def _filter(part: Expression, columns: Sequence[Column]) -> tuple[bool, Filter]:
    """Whether a part of a conjunction is cheap, and the rows for which it is true."""
    match part:
        case Call(function=name, arguments=(Column() as column, other)) if name in _KEEP and _is_constant(other):
            quick = _keep(name, column, other, columns)
        case Call(function=name, arguments=(other, Column() as column)) if name in _KEEP and _is_constant(other):
            quick = _keep(_MIRRORED[name], column, other, columns)
        case Call(function="in", arguments=(Column() as column, *items)) if all(map(_is_constant, items)):
            quick = _keep_items(column, items, columns)
        case _:
            quick = None
    if quick is not None:
        return True, quick
    truth = _on_rows(part, columns)
    return False, lambda rows: list(compress(rows, truth(rows)))


def _keep(name: str, column: Column, other: Expression, columns: Sequence[Column]) -> Filter | None:
    place, constant = _place(column, columns), _folded(other)
    kinds = (column.type, other.type)
    if len(place) > 1 or constant is None or (kinds[0] != kinds[1] and ("decimal" in kinds) and ("float" in kinds)):
        return None
    at, keep = place[0], _KEEP[name]
    if column.nullable and name != "=":  # Null equals no constant, but cannot be ordered against one.
        return lambda rows: keep([row for row in rows if row[at] is not None], at, constant)
    return lambda rows: keep(rows, at, constant)


def _keep_items(column: Column, items: Sequence[Expression], columns: Sequence[Column]) -> Filter | None:
    place = _place(column, columns)
    if len(place) > 1:
        return None
    at, found = place[0], _items(items)[0]
    return lambda rows: [row for row in rows if row[at] in found]
