"""Sides of an equality that can be solved for their attribute: CQ-DHT calls such a query type T1.

A side can be solved if it is one attribute, or an int or time attribute plus or minus constants. Then each value of the
side belongs to exactly one value of the attribute. With a factor, or with rounding (floats, long decimals), that need
not hold.
"""

from __future__ import annotations

from typing import Final

from queries.expressions import Call, Column, Constant, Expression
from queries.functions import call

_EXACT: Final = ("int", "timestamp")


def attribute_of(side: Expression) -> Column | None:
    """The attribute that a side can be solved for; None if there are several, or no unique solution."""
    while isinstance(side, Call):
        inner = _inner(side)
        if inner is None or side.type not in _EXACT or inner.type not in _EXACT:
            return None
        side = inner
    return side if isinstance(side, Column) and not side.path[0].startswith("$") else None


def is_t1(equality: Call) -> bool:
    """CQ-DHT, section 2: whether both sides have one attribute, and one of the two determines the other.

    >>> a, b = Column("r", ("a",), "int"), Column("s", ("b",), "int")
    >>> (
    ...     is_t1(call("=", call("+", a, Constant.of(1)), call("-", b, Constant.of(2)))),
    ...     is_t1(call("=", call("*", a, b), b)),
    ... )
    (True, False)
    """
    sides = equality.arguments
    if any(attribute_of(side) is None for side in sides):
        return False
    return all(isinstance(side, Column) for side in sides) or sides[0].type == sides[1].type


def solved(side: Expression, value: Expression) -> Expression:
    """The value of the attribute for which the side has this value; null if there is none.

    >>> b = Column("s", ("b",), "int")
    >>> print(solved(call("-", Constant.of(9), call("+", b, Constant.of(2))), Column("r", ("a",), "int")))
    9 - r.a - 2
    """
    while isinstance(side, Call):
        left, right = side.arguments if len(side.arguments) == 2 else (Constant.of(0), side.arguments[0])
        match side.function, isinstance(left, Constant):
            case "+", True:
                value = call("-", value, left)
            case "+", False:
                value = call("-", value, right)
            case _, True:
                value = call("-", left, value)
            case _:
                value = call("+", value, right)
        side = right if isinstance(left, Constant) else left
    return value


def _inner(side: Call) -> Expression | None:
    """The operand that a constant is added to or subtracted from, or that is subtracted from it."""
    match side.function, side.arguments:
        case "+" | "-", (inner, Constant()) | (Constant(), inner):
            return inner
        case "negate", (inner,):
            return inner
    return None
