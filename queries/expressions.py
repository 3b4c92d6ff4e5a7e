"""The expressions of a plan: columns, constants and calls, typed, immutable, and able to travel between peers.

Every operator of the languages is a call of a function in queries/functions.py. That file defines it once: its types,
its value on a row, its value on a batch, and its form in other engines. Build calls with `functions.call`, which finds
the type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec

from queries.schema import Field

# The types of values: the field types of streams, and those that only expressions have. A list holds a window's items.
ValueType = Literal[
    "int", "float", "decimal", "string", "bool", "timestamp", "bytes", "record", "interval", "list", "null"
]

# Columns that every source has beside its fields. No field of a stream begins with a dollar sign.
TIME: Final = "$time"  # When the tuple happened: its event time, or its publication where the stream has none.
RANK: Final = "$rank"  # Its number in the stream, from 0; only under a window of rows.
START: Final = "$start"  # The bounds of an aggregate's window, [start, end).
END: Final = "$end"

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


class Column(msgspec.Struct, frozen=True, array_like=True, tag="column", tag_field="node"):
    """A field of an input, by alias and path; inside records the path has several names."""

    input: str
    path: tuple[str, ...]
    type: ValueType
    nullable: bool = False
    fields: tuple[Field, ...] = ()  # Of a record, or of the records of a list.

    def __str__(self) -> str:
        return ".".join((self.input, *self.path) if self.input else self.path)


class Constant(msgspec.Struct, frozen=True, array_like=True, tag="constant", tag_field="node"):
    """A value of the query text in a form that msgpack can encode; `python` is the value to compute with."""

    value: bool | int | float | str | None  # Decimal as text, bytes in hex, timestamp and interval in microseconds.
    type: ValueType

    @classmethod
    def of(cls, value: Any) -> Constant:
        """The constant of a Python value.

        >>> Constant.of(timedelta(minutes=5)), Constant.of(Decimal("1.30")).python
        (Constant(value=300000000, type='interval'), Decimal('1.30'))
        """
        match value:
            case None:
                return cls(None, "null")
            case bool():
                return cls(value, "bool")
            case int():
                return cls(value, "int")
            case float():
                return cls(value, "float")
            case Decimal():
                return cls(str(value), "decimal")
            case str():
                return cls(value, "string")
            case bytes():
                return cls(value.hex(), "bytes")
            case datetime():
                return cls((value - EPOCH) // MICROSECOND, "timestamp")
            case timedelta():
                return cls(value // MICROSECOND, "interval")
        raise AssertionError(f"no constant for a {type(value).__name__}")

    @property
    def nullable(self) -> bool:
        return self.value is None

    @property
    def python(self) -> Any:
        match self.type:
            case _ if self.value is None:
                return None
            case "decimal":
                return Decimal(str(self.value))
            case "bytes":
                return bytes.fromhex(str(self.value))
            case "timestamp":
                assert isinstance(self.value, int)
                return EPOCH + timedelta(microseconds=self.value)
            case "interval":
                assert isinstance(self.value, int)
                return timedelta(microseconds=self.value)
        return self.value

    def __str__(self) -> str:
        match self.type:
            case _ if self.value is None:
                return "NULL"
            case "bool":
                return str(self.value).upper()
            case "string":
                return "'" + str(self.value).replace("'", "''") + "'"
            case "bytes":
                return f"X'{self.value}'"
            case "timestamp":
                return f"TIMESTAMP '{self.python.isoformat()}'"
            case "interval":
                return f"INTERVAL '{self.python}'"
        return str(self.value)


class Call(msgspec.Struct, frozen=True, array_like=True, tag="call", tag_field="node"):
    """A function of queries/functions.py applied to arguments."""

    function: str
    arguments: tuple[Expression, ...]
    type: ValueType
    nullable: bool = False

    def __str__(self) -> str:
        return _infix(self)


Expression = Column | Constant | Call


class Named(msgspec.Struct, frozen=True, array_like=True):
    """An expression and the name of the column it makes."""

    name: str
    expression: Expression

    def __str__(self) -> str:
        shown = str(self.expression)
        return shown if shown.rpartition(".")[2] == self.name else f"{shown} AS {self.name}"


def columns_of(expression: Expression) -> Iterator[Column]:
    """Every column in an expression, in the order of the text, with repetitions."""
    match expression:
        case Column():
            yield expression
        case Call(arguments=arguments):
            for argument in arguments:
                yield from columns_of(argument)


def inputs_of(expression: Expression) -> tuple[str, ...]:
    """The aliases an expression reads, each once, sorted."""
    return tuple(sorted({column.input for column in columns_of(expression)}))


def rewritten(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The expression with `change` applied to each node, leaves first."""
    if isinstance(expression, Call):
        arguments = tuple(rewritten(argument, change) for argument in expression.arguments)
        if arguments != expression.arguments:
            expression = msgspec.structs.replace(expression, arguments=arguments)
    return change(expression)


def conjuncts(expression: Expression | None) -> tuple[Expression, ...]:
    """The parts of a conjunction; none for no predicate."""
    match expression:
        case None:
            return ()
        case Call(function="and", arguments=arguments):
            return tuple(part for argument in arguments for part in conjuncts(argument))
    return (expression,)


def conjunction(parts: tuple[Expression, ...]) -> Expression | None:
    """The conjunction of all parts; None if there is none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return Call("and", parts, "bool", any(part.nullable for part in parts))


# How an expression is written in a plan.

_BINDS: Final = {"or": 1, "and": 2, "not": 3, "=": 4, "<>": 4, "<": 4, "<=": 4, ">": 4, ">=": 4, "like": 4} | {
    "||": 5,
    "+": 6,
    "-": 6,
    "*": 7,
    "/": 7,
    "%": 7,
    "negate": 8,
}


def _infix(call: Call) -> str:
    name, arguments = call.function, call.arguments
    binds = _BINDS.get(name)
    match name:
        case "is_null":
            return f"{_bracketed(arguments[0], 4)} IS NULL"
        case "in":
            return f"{_bracketed(arguments[0], 4)} IN ({', '.join(map(str, arguments[1:]))})"
        case "case":
            pairs = zip(arguments[:-1:2], arguments[1::2], strict=True)
            whens = " ".join(f"WHEN {condition} THEN {value}" for condition, value in pairs)
            return f"CASE {whens} ELSE {arguments[-1]} END"
        case "cast":
            return f"CAST({arguments[0]} AS {call.type.upper()})"
        case "like" if len(arguments) == 3:
            return f"{_bracketed(arguments[0], 4)} LIKE {arguments[1]} ESCAPE {arguments[2]}"
        case "not":
            return f"NOT {_bracketed(arguments[0], 3)}"
        case "negate":
            return f"-{_bracketed(arguments[0], 8)}"
    if binds is None:
        return f"{name}({', '.join(map(str, arguments))})"
    shown = [_bracketed(argument, binds + (number > 0)) for number, argument in enumerate(arguments)]
    return f" {name.upper()} ".join(shown)


def _bracketed(expression: Expression, binds: int) -> str:
    if isinstance(expression, Call) and _BINDS.get(expression.function, 9) < binds:
        return f"({expression})"
    if isinstance(expression, Call) and expression.function in ("is_null", "in") and binds > 4:
        return f"({expression})"
    return str(expression)
