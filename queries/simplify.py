"""One form for each expression: constants folded, comparisons turned one way, commutative arguments sorted.

A simplified expression has the same value on every row, nulls included. Two expressions that differ only in writing (`5
> x AND y = z`, `z = y AND x < 5.0`) become equal, so plans, predicates and terms can be compared by equality.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

import msgspec

from queries.expressions import Call, Column, Constant, Expression, conjuncts, rewritten
from queries.functions import NUMBERS, call, cast, is_strict, value
from queries.values import INT_MAX, INT_MIN

COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=")
OPPOSITE: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_TURNED: Final = {">": "<", ">=": "<="}
# For these types equal values are identical. 0.0 and -0.0 are equal and not identical, and so are 1.0 and 1.00.
_EQUAL_IS_SAME: Final = ("int", "string", "bool", "timestamp", "interval", "bytes")

TRUE: Final = Constant(True, "bool")
FALSE: Final = Constant(False, "bool")


def simplified(expression: Expression) -> Expression:
    """The one form of an expression.

    >>> x, y = Column("r", ("x",), "int"), Column("r", ("y",), "int")
    >>> five = call("+", Constant(2, "int"), Constant(3, "int"))
    >>> print(simplified(call("and", call("not", call("<=", x, five)), call("=", y, x), TRUE)))
    5 < r.x AND r.x = r.y
    """
    return rewritten(expression, _simplified_node)


def simplified_predicate(predicate: Expression | None) -> Expression | None:
    """A predicate without the parts that always hold; None if nothing is left."""
    simple = None if predicate is None else simplified(predicate)
    return None if simple == TRUE else simple


def order_of(expression: Expression) -> bytes:
    """The sort key of an expression: constants last, columns before calls, then by content."""
    rank = 0 if isinstance(expression, Column) else 1 if isinstance(expression, Call) else 2
    return bytes((rank,)) + msgspec.msgpack.encode(expression)


def _simplified_node(expression: Expression) -> Expression:
    if not isinstance(expression, Call):
        return expression
    name, arguments = expression.function, expression.arguments
    if (folded := _folded(expression)) is not None:
        return folded
    match name:
        case "and" | "or":
            return _logic(name, arguments)
        case "not":
            return _negated(arguments[0], expression)
        case "in":
            return _membership(arguments)
        case "=" | "<>":
            return call(name, *sorted(map(_number, arguments), key=order_of))
        case "<" | "<=" | ">" | ">=":
            turned = name in _TURNED
            return call(_TURNED.get(name, name), *map(_number, reversed(arguments) if turned else arguments))
        case "+" | "*":
            return call(name, *sorted(arguments, key=order_of))
        case "greatest" | "least" if expression.type in _EQUAL_IS_SAME:
            return call(name, *_sorted_once(arguments))
        case "is_null" if not arguments[0].nullable:
            return FALSE
        case "cast":
            return cast(arguments[0], expression.type)
    return call(name, *arguments)  # Simplified arguments may tell more, such as whether they can be null.


def _folded(expression: Call) -> Constant | None:
    """The value of a call if it is the same for every row; None if it is not, or if no constant can hold it."""
    values = [argument.python for argument in expression.arguments if isinstance(argument, Constant)]
    if None in values and is_strict(expression.function):
        return Constant(None, expression.type)
    if len(values) < len(expression.arguments):
        return None
    result = value(expression, values)
    if result is None:
        return Constant(None, expression.type)
    if isinstance(result, float) and not math.isfinite(result):
        return None
    constant = Constant.of(result)
    beyond = isinstance(constant.value, int) and not INT_MIN <= constant.value <= INT_MAX
    return constant if constant.type == expression.type and not beyond else None


def _sorted_once(arguments: tuple[Expression, ...]) -> list[Expression]:
    return sorted(dict.fromkeys(arguments), key=order_of)


def _logic(name: str, arguments: tuple[Expression, ...]) -> Expression:
    """A conjunction or disjunction of different parts, sorted, without parts that decide nothing."""
    neutral, deciding = (TRUE, FALSE) if name == "and" else (FALSE, TRUE)
    flat = [part for argument in arguments for part in _flat(name, argument) if part != neutral]
    if deciding in flat:
        return deciding
    parts = _sorted_once(tuple(flat))
    if len(parts) < 2:
        return parts[0] if parts else neutral
    return call(name, *parts)


def _flat(name: str, expression: Expression) -> tuple[Expression, ...]:
    if isinstance(expression, Call) and expression.function == name:
        return tuple(part for argument in expression.arguments for part in _flat(name, argument))
    return (expression,)


def _negated(inner: Expression, whole: Call) -> Expression:
    """NOT, moved inwards as far as possible. It stops at floats: for NaN neither x < 5 nor x >= 5 holds."""
    match inner:
        case Call(function="not", arguments=(innermost,)):
            return innermost
        case Call(function="and" | "or" as name, arguments=parts):
            dual = "or" if name == "and" else "and"
            return _logic(dual, tuple(_simplified_node(call("not", part)) for part in parts))
        case Call(function=name, arguments=(a, b)) if name in ("=", "<>") or (
            name in OPPOSITE and "float" not in (a.type, b.type)
        ):
            return _simplified_node(call(OPPOSITE[name], a, b))
    return whole


def _membership(arguments: tuple[Expression, ...]) -> Expression:
    one, *among = arguments
    there = _sorted_once(tuple(_number(each) for each in among))
    return _simplified_node(call("=", one, there[0])) if len(there) == 1 else call("in", one, *there)


def _number(expression: Expression) -> Expression:
    """An operand of a comparison; for a constant only its number matters."""
    return plain_number(expression) if isinstance(expression, Constant) else expression


def plain_number(constant: Constant) -> Constant:
    """A number in the narrowest type that can hold it: 5.0 becomes 5, 1.30 becomes 1.3. Others stay unchanged."""
    if constant.type not in NUMBERS or constant.value is None:
        return constant
    number = constant.python
    if isinstance(number, float):
        integral = math.isfinite(number) and number == int(number)
        return Constant(int(number), "int") if integral and INT_MIN <= number <= INT_MAX else constant
    if isinstance(number, Decimal):
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int), "a decimal constant is a number"
        while len(digits) > 1 and digits[-1] == 0:
            digits, exponent = digits[:-1], exponent + 1
        number = Decimal((sign, digits, exponent))
        if number == 0 or (exponent >= 0 and number.adjusted() < 19 and INT_MIN <= int(number) <= INT_MAX):
            return Constant(int(number), "int")
        return Constant(str(number), "decimal")
    return constant


def simplified_conjuncts(predicate: Expression | None) -> tuple[Expression, ...]:
    """The simplified parts of a conjunction, in order."""
    return conjuncts(simplified_predicate(predicate))
