"""The atomic predicates of a conjunction: bounds between two terms, inequalities, memberships, nulls.

StreamGlobe, section 3.1, has `v θ c` and `v θ w + c` over paths. Here v and w are terms: a column, or any expression
that is not a sum. A bound says `left <= right + offset` (or `<`); a bound by a constant has ZERO on one side.
Timestamps and intervals count in microseconds, false and true are 0 and 1. A condition of any other kind becomes a term
that must be true. Strings and bytes have an order but no sums, so their constants are terms too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final

from queries.expressions import Call, Column, Constant, Expression, ValueType
from queries.functions import call, is_strict
from queries.simplify import FALSE, OPPOSITE, TRUE, simplified

ZERO: Final = Constant(0, "int")
INTEGRAL: Final = ("int", "timestamp", "interval", "bool")
TEXTUAL: Final = ("string", "bytes")
_EXACT: Final = ("int", "decimal", "timestamp", "interval")  # Types whose arithmetic is exact.


@dataclass(frozen=True, slots=True)
class Bound:
    """left <= right + offset; strict: <."""

    left: Expression
    right: Expression
    offset: Fraction = Fraction(0)
    strict: bool = False

    @property
    def negated(self) -> Bound:
        return Bound(self.right, self.left, -self.offset, not self.strict)

    def equality(self) -> Expression:
        """The equality left = right + offset, in the language's syntax."""
        if self.right == ZERO and self.left.type == "bool":
            return self.left if self.offset else simplified(call("not", self.left))
        right = constant_of(self.offset, self.left.type) if self.right == ZERO else _shifted(self.right, self.offset)
        return simplified(call("=", self.left, right))

    def expression(self) -> Expression:
        """The bound in the language's syntax."""
        left, right, name = self.left, self.right, "<" if self.strict else "<="
        if left == ZERO:
            return _against_constant(name, right, -self.offset, constant_first=True)
        if right == ZERO:
            return _against_constant(name, left, self.offset, constant_first=False)
        return simplified(call(name, left, _shifted(right, self.offset)))


@dataclass(frozen=True, slots=True)
class Unequal:
    """left <> right + offset."""

    left: Expression
    right: Expression
    offset: Fraction = Fraction(0)

    def expression(self) -> Expression:
        if self.right == ZERO:
            return simplified(call("<>", self.left, constant_of(self.offset, self.left.type)))
        return simplified(call("<>", self.left, _shifted(self.right, self.offset)))


@dataclass(frozen=True, slots=True)
class Member:
    """The term is one of the values."""

    term: Expression
    values: tuple[Constant, ...]

    def expression(self) -> Expression:
        return simplified(call("in", self.term, *self.values))


@dataclass(frozen=True, slots=True)
class Null:
    """The term is null, or is not null."""

    term: Expression
    null: bool

    def expression(self) -> Expression:
        is_null = call("is_null", self.term)
        return is_null if self.null else call("not", is_null)


@dataclass(frozen=True, slots=True)
class Never:
    """No row satisfies this."""

    def expression(self) -> Expression:
        return FALSE


Atom = Bound | Unequal | Member | Null | Never


@lru_cache(maxsize=4096)
def atoms_of(conjunct: Expression) -> tuple[Atom, ...]:
    """The atoms whose conjunction equals a simplified conjunct."""
    match conjunct:
        case Constant():
            return () if conjunct == TRUE else (Never(),)
        case Call(function="is_null", arguments=(term,)):
            return (Null(term, null=True),)
        case Call(function="not", arguments=(Call(function="is_null", arguments=(term,)),)):
            return (Null(term, null=False),)
        case Call(function="in", arguments=(term, *among)) if (values := _constants(among)) and _is_plain(term):
            return (Member(term, values),) if len(values) > 1 else atoms_of(call("=", term, values[0]))
        case Call(function="not", arguments=(Call(function="in", arguments=(term, *among)),)) if values := _constants(
            among
        ):
            return tuple(atom for value in values for atom in atoms_of(simplified(call("<>", term, value))))
        case Call(function=name, arguments=(left, right)) if name in OPPOSITE:
            atoms = _comparison(name, left, right)
            if atoms is not None:
                return atoms
        case Call(function="not", arguments=(inner,)):
            return (Bound(inner, ZERO),)
    return (Bound(ZERO, conjunct, Fraction(-1)),)


def present_in(conjunct: Expression) -> Iterator[Expression]:
    """The terms that cannot be null if the conjunct is true."""
    match conjunct:
        case Call(function="not", arguments=(Call(function="is_null", arguments=(term,)),)):
            yield from _needed(term)
        case Call(function="is_null"):
            return
        case (
            Call(function="in", arguments=(term, *_))
            | Call(function="not", arguments=(Call(function="in", arguments=(term, *_)),))
        ):
            yield from _needed(term)
        case _:
            yield from _needed(conjunct)


def _needed(term: Expression) -> Iterator[Expression]:
    if isinstance(term, Column):
        yield term
    elif isinstance(term, Call):
        yield term
        if is_strict(term.function):
            for argument in term.arguments:
                yield from _needed(argument)


# Sums.


@dataclass(slots=True)
class _Sum:
    """A sum of terms with their factors, and a constant."""

    terms: dict[Expression, Fraction]
    constant: Fraction
    cancelled: bool = False  # A nullable or NaN term cancelled out; the sum is still null or NaN with it.

    def plus(self, other: _Sum, factor: Fraction) -> _Sum:
        terms = dict(self.terms)
        cancelled = self.cancelled or other.cancelled
        for term, times in other.terms.items():
            terms[term] = terms.get(term, Fraction(0)) + factor * times
            if not terms[term]:
                del terms[term]
                cancelled = cancelled or term.nullable or term.type == "float"
        return _Sum(terms, self.constant + factor * other.constant, cancelled)


def number_of(constant: Constant) -> Fraction | None:
    """A constant as the number that the graph uses; None if it has none."""
    value = constant.value
    if value is None or constant.type in TEXTUAL or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return Fraction(Decimal(value)) if isinstance(value, str) else Fraction(value)


def constant_of(number: Fraction, kind: ValueType) -> Constant:
    """The constant for a number beside a term of this type."""
    if kind in ("timestamp", "interval"):
        return Constant(int(number), kind)
    if kind == "bool":
        return Constant(bool(number), "bool")
    if number.denominator == 1:
        return Constant(int(number), "int") if abs(number) < 1 << 63 else Constant(str(int(number)), "decimal")
    if kind == "float" and Fraction(float(number)) == number:
        return Constant(float(number), "float")
    return Constant(str(_decimal(number)), "decimal")


def _decimal(number: Fraction) -> Decimal:
    places = 0
    while number.denominator != 1:
        number, places = number * 10, places + 1
    return Decimal((int(number < 0), tuple(map(int, str(abs(int(number))))), -places))


def _is_finite(number: Fraction) -> bool:
    """Whether a decimal can hold it exactly: the denominator has no prime factors but 2 and 5."""
    below = number.denominator
    for prime in (2, 5):
        while below % prime == 0:
            below //= prime
    return below == 1


def _sum(expression: Expression) -> _Sum:
    match expression:
        case Constant() if (number := number_of(expression)) is not None:
            return _Sum({}, number)
        case Call(type=kind) if kind not in _EXACT:
            pass
        case Call(function="+", arguments=(a, b)):
            return _sum(a).plus(_sum(b), Fraction(1))
        case Call(function="-", arguments=(a, b)):
            return _sum(a).plus(_sum(b), Fraction(-1))
        case Call(function="negate", arguments=(a,)):
            return _Sum({}, Fraction(0)).plus(_sum(a), Fraction(-1))
        case Call(function="*", arguments=(a, Constant() as factor)) if (
            (times := number_of(factor)) is not None and times and (a.type == "int" or times.denominator == 1)
        ):
            return _Sum({}, Fraction(0)).plus(_sum(a), times)
        case Call(function="cast", arguments=(a,), type="decimal") if a.type == "int":
            return _sum(a)
    return _Sum({expression: Fraction(1)}, Fraction(0))


def _comparison(name: str, left: Expression, right: Expression) -> tuple[Atom, ...] | None:
    """The atoms of `left θ right`; None if it involves more than two terms."""
    if left.type in TEXTUAL:
        if isinstance(left, Constant) and isinstance(right, Constant):
            return None
        return _atoms(name, left, right, Fraction(0)) if not _has_null(left, right) else (Never(),)
    if _has_null(left, right):
        return (Never(),)
    whole = _sum(left).plus(_sum(right), Fraction(-1))
    if whole.cancelled:
        return None
    parts = sorted(whole.terms.items(), key=lambda each: (each[1] < 0, str(each[0])))
    if not parts:
        return () if _holds(name, whole.constant) else (Never(),)
    offset = -whole.constant / abs(parts[0][1])
    if not _is_finite(offset):
        offset = math.floor(offset) + Fraction(1, 2) if name in _ORDERED and _all_integral(parts) else offset
    match parts:
        case [(term, factor)] if _is_finite(offset):
            if factor > 0:
                return _atoms(name, term, ZERO, offset)
            return _atoms(name, ZERO, term, offset)
        case [(one, factor), (other, minus)] if factor == -minus and _is_finite(offset):
            return _atoms(name, one, other, offset)
    if isinstance(left, Constant) or isinstance(right, Constant):
        term, number = (right, left) if isinstance(left, Constant) else (left, right)
        assert isinstance(number, Constant)
        bound = number_of(number)
        if bound is None:
            return None
        return _atoms(name, term, ZERO, bound) if term is left else _atoms(name, ZERO, term, -bound)
    return _atoms(name, left, right, Fraction(0))


_ORDERED: Final = ("<", "<=", ">", ">=")


def _all_integral(parts: list[tuple[Expression, Fraction]]) -> bool:
    return all(term.type in INTEGRAL for term, _ in parts)


def _atoms(name: str, left: Expression, right: Expression, offset: Fraction) -> tuple[Atom, ...]:
    """left θ right + offset."""
    match name:
        case "=":
            return (Bound(left, right, offset), Bound(right, left, -offset))
        case "<>":
            swapped = isinstance(left, Constant) or (not isinstance(right, Constant) and str(right) < str(left))
            return (Unequal(right, left, -offset) if swapped else Unequal(left, right, offset),)
        case "<" | "<=":
            return (Bound(left, right, offset, strict=name == "<"),)
    return (Bound(right, left, -offset, strict=name == ">"),)


def _holds(name: str, difference: Fraction) -> bool:
    """Whether the comparison holds for two constants with this difference."""
    match name:
        case "=" | "<>":
            return (difference == 0) == (name == "=")
        case "<" | "<=":
            return difference < 0 or (difference == 0 and name == "<=")
    return difference > 0 or (difference == 0 and name == ">=")


def _has_null(*arguments: Expression) -> bool:
    return any(isinstance(argument, Constant) and argument.value is None for argument in arguments)


def _is_plain(term: Expression) -> bool:
    return not isinstance(term, Constant)


def _constants(among: list[Expression]) -> tuple[Constant, ...]:
    """The values of a list of constants; empty if one is null or is no constant."""
    constants = tuple(each for each in among if isinstance(each, Constant) and each.value is not None)
    return constants if len(constants) == len(among) else ()


# Back to the language.


def _against_constant(name: str, term: Expression, number: Fraction, *, constant_first: bool) -> Expression:
    if term.type == "bool":
        return term if constant_first else simplified(call("not", term))
    constant = constant_of(number, term.type)
    return simplified(call(name, constant, term) if constant_first else call(name, term, constant))


def _shifted(term: Expression, offset: Fraction) -> Expression:
    if not offset:
        return term
    kind: ValueType = "interval" if term.type == "timestamp" else term.type
    return call("+" if offset > 0 else "-", term, constant_of(abs(offset), kind))
