"""What each function means for arguments of certain types: the type of the result, and how it is computed.

A rule takes the name of the function and its arguments, and raises TypeMismatch if they do not fit. queries/values.py
computes the values, and queries/functions.py has the table of functions that uses these rules.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from queries import decimals, values
from queries.casts import CASTS, article, cast
from queries.errors import TypeMismatch, nearest
from queries.expressions import Constant, Expression, ValueType

NUMBERS: Final = ("int", "decimal", "float")  # From narrow to wide; the wider of two is their common type.
MANY: Final = 1 << 20
_COMPARED: Final = (*NUMBERS, "string", "bool", "timestamp", "interval", "bytes")

Arguments = tuple[Expression, ...]


class Meaning(NamedTuple):
    """What a function does for arguments of certain types."""

    type: ValueType
    value: Callable[..., Any]  # On Python values; a strict function never gets None.
    partial: bool = False  # The result may be null even if no argument is.
    arguments: Arguments | None = None  # The converted arguments, if constants or types had to be brought together.
    # The arguments that `value` takes, if not all; the others are built in already.
    takes: tuple[int, ...] | None = None


Rule = Callable[[str, Arguments], Meaning]


def common_type(kinds: list[ValueType], what: str) -> ValueType:
    """The one type that values of all these types can have; raises TypeMismatch."""
    there = list(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if not there:
        return "null"
    if all(kind in NUMBERS for kind in there):
        return max(there, key=NUMBERS.index)
    if len(there) > 1:
        raise TypeMismatch(f"{what} cannot bring {there[0]} and {there[1]} together", _cast_hint(there[0], there[1]))
    return there[0]


# Bringing arguments together.


def nothing(*_: Any) -> None:
    """The function that always gives null."""


def _cast_hint(a: str, b: str) -> str:
    other = next((kind for kind in (a, b) if kind != "string"), "")
    return f"say which is meant: CAST(... AS {other.upper()})" if "string" in (a, b) and other else ""


def _read(constant: Constant, kind: ValueType) -> Constant:
    value = CASTS["string", kind][0](str(constant.value))
    if kind == "decimal" and (value is None or value != Decimal(str(constant.value))):
        raise TypeMismatch(f"{constant} cannot be read as a decimal", f"for example: '12.50', {decimals.BOUNDS}")
    if value is None:
        example = {"timestamp": "2026-01-31 12:00:00Z", "interval": "5 minutes"}[kind]
        raise TypeMismatch(f"{constant} cannot be read as {article(kind)}", f"for example: '{example}'")
    return Constant.of(value)


def _met(arguments: Arguments) -> Arguments:
    """The arguments, with constants converted to the type of their partners.

    Quoted text becomes a timestamp, interval or decimal if its partner is one. A decimal constant becomes a float
    beside a float; otherwise `x = 0.1` would never hold.
    """
    kinds = [argument.type for argument in arguments]
    others = [kind for kind in ("timestamp", "interval", "decimal") if kind in kinds]
    met = []
    for argument in arguments:
        if isinstance(argument, Constant) and argument.value is not None:
            if argument.type == "string" and others:
                argument = _read(argument, others[0])
            elif argument.type == "decimal" and "float" in kinds:
                argument = Constant.of(float(argument.python))
        met.append(argument)
    return tuple(met)


def _counted(name: str, arguments: Arguments, least: int, most: int) -> None:
    if least <= len(arguments) <= most:
        return
    wanted = f"{least}" if least == most else f"{least} to {most}" if most < MANY else f"at least {least}"
    raise TypeMismatch(f"{name} takes {wanted} argument{'' if wanted == '1' else 's'}, not {len(arguments)}")


def _refuse(name: str, arguments: Arguments, hint: str = "") -> TypeMismatch:
    kinds = [argument.type for argument in arguments]
    if len(kinds) == 2 and not hint:
        hint = _cast_hint(*kinds)
    shown = " and ".join(kinds) if len(kinds) < 3 else f"{', '.join(kinds[:-1])} and {kinds[-1]}"
    return TypeMismatch(f"{name} does not take {shown}", hint)


# Arithmetic.

_ON_INTS: Final[Mapping[str, Meaning]] = {
    "+": Meaning("int", values.int_add, partial=True),
    "-": Meaning("int", values.int_subtract, partial=True),
    "*": Meaning("int", values.int_multiply, partial=True),
    "/": Meaning("float", values.float_divide, partial=True),
    "%": Meaning("int", values.int_remainder, partial=True),
}
_ON_DECIMALS: Final[Mapping[str, Meaning]] = {
    "+": Meaning("decimal", decimals.add, partial=True),
    "-": Meaning("decimal", decimals.subtract, partial=True),
    "*": Meaning("decimal", decimals.multiply, partial=True),
    "/": Meaning("decimal", decimals.divide, partial=True),
    "%": Meaning("decimal", decimals.remainder, partial=True),
}
_ON_FLOATS: Final[Mapping[str, Meaning]] = {
    "+": Meaning("float", operator.add),
    "-": Meaning("float", operator.sub),
    "*": Meaning("float", operator.mul),
    "/": Meaning("float", values.float_divide, partial=True),
    "%": Meaning("float", values.float_remainder, partial=True),
}
_ON_TIMES: Final[Mapping[tuple[str, str, str], Meaning]] = {
    ("+", "timestamp", "interval"): Meaning("timestamp", values.time_add, partial=True),
    ("+", "interval", "timestamp"): Meaning("timestamp", values.time_add, partial=True),
    ("+", "interval", "interval"): Meaning("interval", values.time_add, partial=True),
    ("-", "timestamp", "interval"): Meaning("timestamp", values.time_subtract, partial=True),
    ("-", "timestamp", "timestamp"): Meaning("interval", operator.sub),
    ("-", "interval", "interval"): Meaning("interval", values.time_subtract, partial=True),
}


def arithmetic(name: str, arguments: Arguments) -> Meaning:
    _counted(name, arguments, 2, 2)
    sign = "%" if name == "mod" else name
    a, b = arguments = _met_by_arithmetic(sign, arguments)
    kinds: tuple[str, str] = (a.type, b.type)
    if "null" in kinds:
        kinds = (kinds[1], kinds[1]) if kinds[0] == "null" else (kinds[0], kinds[0])
        if kinds[0] in NUMBERS:
            return _on_numbers(sign, kinds)._replace(value=nothing, partial=True, arguments=arguments)
        if kinds[0] not in ("interval", "timestamp", "null"):
            raise _refuse(sign, arguments)
        return Meaning(kinds[0], nothing, partial=True, arguments=arguments)  # type: ignore[arg-type]
    if kinds[0] in NUMBERS and kinds[1] in NUMBERS:
        if sign == "/" and "decimal" not in kinds and isinstance(b, Constant) and b.value:
            return Meaning("float", operator.truediv, arguments=arguments)  # The divisor is a constant and not zero.
        return _on_numbers(sign, kinds)._replace(arguments=arguments)
    if (sign, *kinds) in _ON_TIMES:
        return _ON_TIMES[(sign, *kinds)]._replace(arguments=arguments)
    if sign in "*/" and kinds[0] == "interval" and kinds[1] in NUMBERS:
        value = values.interval_multiply if sign == "*" else values.interval_divide
        return Meaning("interval", value, partial=True, arguments=arguments)
    if sign == "*" and kinds[1] == "interval" and kinds[0] in NUMBERS:
        return Meaning("interval", lambda n, each: values.interval_multiply(each, n), partial=True, arguments=arguments)
    hint = "|| puts strings together" if sign == "+" and kinds == ("string", "string") else ""
    raise _refuse(sign, arguments, hint)


def _met_by_arithmetic(sign: str, arguments: Arguments) -> Arguments:
    """Text beside a timestamp is an interval if it reads as one; otherwise the usual rules apply."""
    if "timestamp" not in (arguments[0].type, arguments[1].type):
        return _met(arguments)
    met = []
    for argument in arguments:
        if isinstance(argument, Constant) and argument.type == "string" and argument.value is not None:
            as_interval = CASTS["string", "interval"][0](str(argument.value))
            subtracted = sign == "-" and argument is arguments[0]
            if as_interval is not None and not subtracted:
                argument = Constant.of(as_interval)
            else:
                argument = _read(argument, "timestamp")
        met.append(argument)
    return tuple(met)


def _on_numbers(sign: str, kinds: tuple[str, str]) -> Meaning:
    kind = max(kinds, key=NUMBERS.index)
    meaning = {"int": _ON_INTS, "decimal": _ON_DECIMALS, "float": _ON_FLOATS}[kind][sign]
    if kind == "float" and "decimal" in kinds:
        return meaning._replace(value=_as_floats(meaning.value))
    return meaning


def _as_floats(value: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: value(float(a), float(b))


def by_type(least: int = 1, most: int = 1, **meanings: Meaning) -> Rule:
    """A function whose first argument determines its meaning; further arguments are ints."""

    def meaning(name: str, arguments: Arguments) -> Meaning:
        _counted(name, arguments, least, most)
        kind = arguments[0].type
        if kind == "null":
            first = next(iter(meanings.values()))
            return first._replace(value=nothing, partial=True)
        if kind not in meanings or any(further.type not in ("int", "null") for further in arguments[1:]):
            raise _refuse(name, arguments)
        return meanings[kind]

    return meaning


def rounding(name: str, arguments: Arguments) -> Meaning:
    _counted(name, arguments, 1, 2)
    digits = arguments[1] if len(arguments) > 1 else Constant(0, "int")
    if not isinstance(digits, Constant) or not isinstance(digits.value, int) or digits.type != "int":
        raise TypeMismatch("round takes its number of digits as a constant", "for example: round(price, 2)")
    count = max(-40, min(digits.value, 40))
    kind = by_type(1, 2, int=_INT_ROUND, decimal=_DECIMAL_ROUND, float=_FLOAT_ROUND)(name, arguments)
    return kind._replace(value=lambda value: kind.value(value, count), takes=(0,))


_INT_ROUND: Final = Meaning("int", values.int_round, partial=True)
_DECIMAL_ROUND: Final = Meaning("decimal", decimals.rounded, partial=True)
_FLOAT_ROUND: Final = Meaning("float", values.float_round)
SIGN: Final = Meaning("int", values.sign)


def float_function(value: Callable[..., Any], count: int = 1) -> Rule:
    def meaning(name: str, arguments: Arguments) -> Meaning:
        _counted(name, arguments, count, count)
        if any(argument.type not in (*NUMBERS, "null") for argument in arguments):
            raise _refuse(name, arguments)
        return Meaning("float", lambda *numbers: value(*map(float, numbers)), partial=True)

    return meaning


# Comparison and logic.

COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def comparison(name: str, arguments: Arguments) -> Meaning:
    _counted(name, arguments, 2, 2)
    arguments = _met(arguments)
    value = COMPARISONS[name]
    kinds = [argument.type for argument in arguments]
    _check_compared(name, arguments)
    if "decimal" in kinds and "float" in kinds and name not in ("=", "<>"):
        value = values.unordered(value)
    return Meaning("bool", value, arguments=arguments)


def _check_compared(name: str, arguments: Arguments) -> None:
    """Check that all arguments can be compared with each other."""
    first: Expression | None = None
    for argument in arguments:
        if argument.type == "null":
            continue
        if argument.type not in _COMPARED:
            hint = "compare its fields" if argument.type == "record" else ""
            raise TypeMismatch(f"{name} does not compare {article(argument.type)}", hint)
        if first is None:
            first = argument
        elif argument.type != first.type and not (argument.type in NUMBERS and first.type in NUMBERS):
            hint = _cast_hint(first.type, argument.type)
            raise TypeMismatch(f"{name} does not compare {first.type} with {argument.type}", hint)


def is_in(name: str, arguments: Arguments) -> Meaning:
    _counted(name, arguments, 2, MANY)
    arguments = _met(arguments)
    for item in arguments[1:]:
        _check_compared(name, (arguments[0], item))
    return Meaning("bool", values.is_in, arguments=arguments)


def logic(value: Callable[..., Any], least: int, most: int) -> Rule:
    def meaning(name: str, arguments: Arguments) -> Meaning:
        _counted(name, arguments, least, most)
        for argument in arguments:
            if argument.type not in ("bool", "null"):
                hint = f"compare it, for example: {argument} <> 0" if argument.type in NUMBERS else ""
                raise TypeMismatch(f"{name} takes conditions, not {article(argument.type)}", hint)
        return Meaning("bool", value)

    return meaning


def is_null(name: str, arguments: Arguments) -> Meaning:
    _counted(name, arguments, 1, 1)
    return Meaning("bool", lambda value: value is None)


def like(name: str, arguments: Arguments) -> Meaning:
    _counted(name, arguments, 2, 3)
    text, *constants = arguments
    if text.type not in ("string", "null"):
        raise _refuse(name, (text,), "CAST(... AS STRING) makes a string")
    texts = [each.value for each in constants if isinstance(each, Constant) and each.type == "string"]
    if len(texts) < len(constants):
        raise TypeMismatch("like takes its pattern as a constant", "contains(text, part) takes any string")
    pattern, escape = str(texts[0]), str(texts[1]) if len(texts) > 1 else ""
    if len(texts) > 1 and len(escape) != 1:
        raise TypeMismatch(f"the escape of like is one character, not {constants[1]}")
    if escape and len(pattern.replace(escape * 2, "")) and pattern.replace(escape * 2, "").endswith(escape):
        raise TypeMismatch("the pattern of like ends with its escape", "write the escape twice to mean itself")
    return Meaning("bool", values.matcher(pattern, escape), takes=(0,))


# Functions that choose among their arguments.


def _alike(name: str, arguments: Arguments) -> tuple[ValueType, Arguments]:
    """The common type of arguments, and the arguments cast to it."""
    arguments = _met(arguments)
    kind = common_type([argument.type for argument in arguments], name)
    return kind, tuple(_as(argument, kind) for argument in arguments)


def _as(argument: Expression, kind: ValueType) -> Expression:
    if argument.type in (kind, "null"):
        return argument
    if isinstance(argument, Constant) and argument.value is not None:
        return Constant.of(CASTS[argument.type, kind][0](argument.python))
    return cast(argument, kind)


def choice(value: Callable[..., Any], *, compared: bool = False) -> Rule:
    def meaning(name: str, arguments: Arguments) -> Meaning:
        _counted(name, arguments, 1, MANY)
        if compared:
            _check_compared(name, _met(arguments))
        kind, arguments = _alike(name, arguments)
        return Meaning(kind, value, arguments=arguments)

    return meaning


def case(name: str, arguments: Arguments) -> Meaning:
    """CASE: condition, value, …, and the ELSE value last."""
    _counted(name, arguments, 3, MANY)
    assert len(arguments) % 2 == 1, "CASE without ELSE has a null at its end"
    logic(values.choose, 1, MANY)("case", arguments[:-1:2])
    kind, results = _alike(name, (*arguments[1::2], arguments[-1]))
    paired = [each for pair in zip(arguments[:-1:2], results[:-1], strict=True) for each in pair]
    return Meaning(kind, values.choose, arguments=(*paired, results[-1]))


def nullif(name: str, arguments: Arguments) -> Meaning:
    _counted(name, arguments, 2, 2)
    arguments = _met(arguments)
    _check_compared(name, arguments)
    return Meaning(arguments[0].type, values.nullif, partial=True, arguments=arguments)


# Text and time.


def signature(
    kind: ValueType, value: Callable[..., Any], *wanted: str, least: int | None = None, partial: bool = False
) -> Rule:
    """A function with fixed argument types ("string|bytes" allows two); those from `least` on are optional."""

    def meaning(name: str, arguments: Arguments) -> Meaning:
        _counted(name, arguments, len(wanted) if least is None else least, len(wanted))
        for argument, want in zip(arguments, wanted, strict=False):
            if argument.type not in (*want.split("|"), "null"):
                hint = "CAST(... AS STRING) makes a string" if want == "string" and argument.type != "record" else ""
                raise TypeMismatch(f"{name} takes {' or '.join(want.split('|'))}, not {argument.type}", hint)
        return Meaning(kind, value, partial)

    return meaning


def concat(name: str, arguments: Arguments) -> Meaning:
    _counted(name, arguments, 1, MANY)
    return signature("string", values.concat, *["string"] * len(arguments), partial=True)(name, arguments)


def _part(name: str, arguments: Arguments, known: Mapping[str, Any]) -> str:
    part = arguments[0]
    if not isinstance(part, Constant) or part.type != "string":
        raise TypeMismatch(f"{name} takes the name of a part first", f"there is {', '.join(known)}")
    if part.value not in known:
        raise TypeMismatch(f'{name} knows no "{part.value}"', nearest(str(part.value), known))
    return str(part.value)


def extract(name: str, arguments: Arguments) -> Meaning:
    _counted(name, arguments, 2, 2)
    if arguments[1].type not in ("timestamp", "interval", "null"):
        raise _refuse(name, arguments[1:], _cast_hint("string", "timestamp") if arguments[1].type == "string" else "")
    known: Mapping[str, Any] = values.INTERVAL_PARTS if arguments[1].type == "interval" else values.PARTS
    part = _part(name, arguments, known)
    return Meaning("float" if part == "epoch" else "int", known[part], takes=(1,))


def date_trunc(name: str, arguments: Arguments) -> Meaning:
    _counted(name, arguments, 2, 2)
    if arguments[1].type not in ("timestamp", "null"):
        raise _refuse(name, arguments[1:], _cast_hint("string", "timestamp") if arguments[1].type == "string" else "")
    part = _part(name, arguments, dict.fromkeys(values.TRUNCATIONS))
    return Meaning("timestamp", values.truncation(part), partial=part == "week", takes=(1,))
