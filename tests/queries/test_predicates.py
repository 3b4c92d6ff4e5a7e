"""The predicate graph against brute force over small domains, and by example."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache, reduce
from typing import Any, NamedTuple

import pytest

from queries.expressions import Column, Constant, Expression, conjunction, conjuncts
from queries.functions import call
from queries.predicates import NODES_MAX, graph_of, implies, minimised, satisfiable
from queries.simplify import FALSE, simplified
from tests.seeds import draw_seed
from tests.soaking import many

HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Atom(NamedTuple):
    """variable θ other + constant, with variables by number; no other: variable θ constant."""

    variable: int
    theta: str
    other: int | None
    constant: Fraction


@dataclass(frozen=True)
class World:
    """Every assignment of a few variables, as the bits of a number.

    Where some assignment satisfies a conjunction of atoms whose constants are multiples of 1/2 up to `most`, one with
    multiples of `step` up to `limit` does: `step` leaves room for a strict bound for each variable, `limit` is as far
    as a path through all of them can lead.
    """

    kinds: tuple[str, ...]
    most: Fraction
    step: Fraction
    limit: Fraction

    @classmethod
    def of(cls, *kinds: str, most: str) -> World:
        dense = sum(kind == "decimal" for kind in kinds)
        step = Fraction(1, 2 * (dense + 1)) if dense else Fraction(1)
        units = [Fraction(1, 2) if kind == "decimal" else Fraction(1) for kind in kinds]
        return cls(kinds, Fraction(most), step, sum((Fraction(most) + unit for unit in units), Fraction(0)))

    @cache  # noqa: B019
    def values(self, variable: int) -> list[Fraction]:
        step = self.step if self.kinds[variable] == "decimal" else Fraction(1)
        count = int(self.limit / step)
        return [number * step for number in range(-count, count + 1)]

    def stride(self, variable: int) -> int:
        return reduce(operator.mul, (len(self.values(each)) for each in range(variable + 1, len(self.kinds))), 1)

    @property
    def size(self) -> int:
        return self.stride(-1)

    @cache  # noqa: B019
    def bits(self, atom: Atom) -> int:
        """The assignments that satisfy an atom."""
        holds = HOLDS[atom.theta]
        if atom.other is None:
            wanted = [holds(value, atom.constant) for value in self.values(atom.variable)]
            return self._repeated(self._spread(wanted, atom.variable), self.stride(atom.variable - 1))
        outer, inner = sorted((atom.variable, atom.other))
        whole = 0
        for number, value in enumerate(self.values(outer)):
            if outer == atom.variable:
                wanted = [holds(value, other + atom.constant) for other in self.values(inner)]
            else:
                wanted = [holds(other, value + atom.constant) for other in self.values(inner)]
            row = self._repeated(self._spread(wanted, inner), self.stride(inner - 1), self.stride(outer))
            whole |= row << number * self.stride(outer)
        return self._repeated(whole, self.stride(outer - 1))

    def _spread(self, wanted: list[bool], variable: int) -> int:
        """One bit for each value of a variable, as wide as the variables after it."""
        wide = self.stride(variable)
        return sum(((1 << wide) - 1) << number * wide for number, each in enumerate(wanted) if each)

    def _repeated(self, bits: int, width: int, whole: int | None = None) -> int:
        """The bits again and again over the variables further out."""
        times = (self.size if whole is None else whole) // width
        if times == 1:
            return bits
        half = self._repeated(bits, width, times // 2 * width)
        twice = half | half << times // 2 * width
        return twice << width | bits if times % 2 else twice

    def satisfying(self, atoms: list[Atom]) -> int:
        return reduce(operator.and_, map(self.bits, atoms), (1 << self.size) - 1)

    def column(self, variable: int) -> Column:
        return Column("r", ("xyzw"[variable],), self.kinds[variable])  # type: ignore[arg-type]

    def expression(self, atoms: list[Atom]) -> Expression | None:
        return conjunction(tuple(map(self._comparison, atoms)))

    def _comparison(self, atom: Atom) -> Expression:
        right: Expression = number(atom.constant)
        if atom.other is not None:
            right = call("+", self.column(atom.other), right)
        return call(atom.theta, self.column(atom.variable), right)

    def random_atom(self, rng: random.Random) -> Atom:
        variable, *others = rng.sample(range(len(self.kinds)), 2)
        other = rng.choice([None, *others])
        mixed = "decimal" in (self.kinds[variable], self.kinds[variable if other is None else other])
        unit = Fraction(1, 2) if mixed else Fraction(1)
        count = int(self.most / unit)
        return Atom(variable, rng.choice(list(HOLDS)), other, unit * rng.randint(-count, count))

    def random_atoms(self, rng: random.Random, most: int) -> list[Atom]:
        return [self.random_atom(rng) for _ in range(rng.randint(1, most))]

    def random_pair(self, rng: random.Random) -> tuple[list[Atom], list[Atom]]:
        """Two conjunctions; the second is often one that follows from the first, or nearly."""
        p, q = self.random_atoms(rng, 5), self.random_atoms(rng, 2)
        if rng.random() < 0.5:
            left = self.satisfying(p)
            likely = [atom for atom in (self.random_atom(rng) for _ in range(20)) if not left & ~self.bits(atom)]
            q = likely[:2] or q
        return p, q


def number(value: Fraction) -> Constant:
    return Constant.of(int(value) if value.denominator == 1 else Decimal(value.numerator) / value.denominator)


WORLDS = {
    "three integers": World.of("int", "int", "int", most="2"),
    "three decimals": World.of("decimal", "decimal", "decimal", most="1"),
    "two integers and two decimals": World.of("int", "int", "decimal", "decimal", most="1"),
}


BY_BRUTE_FORCE = pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param("three integers", many(5_000, soaked=10_000), marks=pytest.mark.slow),
        pytest.param("three decimals", 3_000, marks=pytest.mark.slow),
        pytest.param("two integers and two decimals", 3_000, marks=pytest.mark.slow),
        ("three integers", 500),
        ("two integers and two decimals", 50),
    ],
)


def drawn() -> random.Random:
    seed = draw_seed()
    return random.Random(seed)


@BY_BRUTE_FORCE
def test_implies_agrees_with_brute_force(name: str, count: int) -> None:
    rng, world = drawn(), WORLDS[name]
    implied = 0
    for _ in range(count):
        p, q = world.random_pair(rng)
        expected = not world.satisfying(p) & ~world.satisfying(q)
        implied += expected
        assert implies(world.expression(p), world.expression(q)) == expected, f"{p} => {q}"
    assert count // 5 < implied < count * 4 // 5, "the pairs are too much alike to tell"


@BY_BRUTE_FORCE
def test_satisfiable_agrees_with_brute_force(name: str, count: int) -> None:
    rng, world = drawn(), WORLDS[name]
    found = 0
    for _ in range(count):
        p = world.random_atoms(rng, 6)
        expected = world.satisfying(p) != 0
        found += expected
        assert satisfiable(world.expression(p)) == expected, str(p)
    assert count // 5 < found < count


@BY_BRUTE_FORCE
def test_the_least_form_says_the_same_and_nothing_twice(name: str, count: int) -> None:
    rng, world = drawn(), WORLDS[name]
    for _ in range(count // 10):
        predicate = world.expression(world.random_atoms(rng, 6))
        least = minimised(predicate)
        assert implies(predicate, least), str(predicate)
        assert implies(least, predicate), str(predicate)
        assert minimised(least) == least, str(predicate)
        parts = conjuncts(least)
        for part in parts:
            rest = conjunction(tuple(each for each in parts if each != part))
            assert part == FALSE or not implies(rest, part), f"{part} in {least}"


X, Y = Column("r", ("x",), "int"), Column("r", ("y",), "int", nullable=True)
D, E = Column("r", ("d",), "decimal"), Column("r", ("e",), "decimal")
F = Column("r", ("f",), "float", nullable=True)
S, T = Column("r", ("s",), "string", nullable=True), Column("r", ("t",), "string")
B = Column("r", ("b",), "bool", nullable=True)
AT, TO = Column("r", ("at",), "timestamp"), Column("r", ("to",), "timestamp")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def c(value: Any) -> Constant:
    return Constant.of(value)


def both(*parts: Expression) -> Expression:
    return call("and", *parts)


IMPLIED = {
    "integers leave decimals no room": (  # If d = e, that is x - 1/2, and 0.
        both(
            call("<=", D, c(0)),
            call("<=", c(0), E),
            call("<=", D, call("+", Y, c(Decimal("0.5")))),
            call("<=", X, call("+", E, c(Decimal("0.5")))),
            call("<=", Y, call("-", X, c(1))),
        ),
        call("<", D, E),
    ),
    "an integer has no place between two": (both(call(">", X, c(4)), call("<", X, c(6))), call("=", X, c(5))),
    "a fraction bounds an integer": (call("<=", X, c(Decimal("5.5"))), call("<", X, c(6))),
    "a decimal keeps strictness": (call("<", D, c(5)), call("<=", D, c(5))),
    "equality in a chain": (both(call("=", X, Y), call("=", Y, c(3))), call("<=", X, c(3))),
    "sums on either side": (call("<=", call("-", X, Y), c(3)), call("<", X, call("+", Y, c(4)))),
    "factors": (call("<=", call("*", X, c(3)), c(10)), call("<=", X, c(3))),
    "negative factors": (call("<=", call("negate", X), c(-2)), call(">", X, c(1))),
    "terms that are no columns": (call(">", call("abs", X), c(5)), call(">=", call("abs", X), c(6))),
    "sums that are no difference": (call("<=", call("+", X, Y), c(5)), call("<=", call("+", Y, X), c(7))),
    "timestamps": (call(">=", AT, c(NOON)), call(">", AT, c(NOON - timedelta(microseconds=1)))),
    "intervals": (
        call("<=", call("-", TO, AT), c(timedelta(minutes=5))),
        call("<=", TO, call("+", AT, c(timedelta(minutes=6)))),
    ),
    "text": (call("=", S, c("VIE")), both(call("<", S, c("W")), call("<>", S, c("ATL")), call(">=", S, c("VIE")))),
    "text of two columns": (both(call("<", S, T), call("<=", T, c("b"))), call("<", S, c("b"))),
    "one of a list but one": (
        both(call("in", S, c("a"), c("b")), call("<>", S, c("b"))),
        call("in", S, c("a"), c("c")),
    ),
    "past all that is excluded": (
        both(call(">=", X, c(1)), call("not", call("in", X, c(1), c(2), c(4)))),
        both(call(">=", X, c(3)), call("<>", X, c(4))),
    ),
    "one of a list": (call("in", S, c("a"), c("b")), call("in", S, c("a"), c("b"), c("c"))),
    "a list that is a range": (both(call(">=", X, c(1)), call("<=", X, c(3))), call("in", X, c(1), c(2), c(3))),
    "a list with bounds": (both(call("in", X, c(1), c(5), c(9)), call("<", X, c(7))), call("<=", X, c(5))),
    "unequal at the bound": (both(call("<=", X, c(5)), call("<>", X, c(5))), call("<=", X, c(4))),
    "unequal outside": (call("<", D, c(5)), call("<>", D, c(6))),
    "not in a list": (call("not", call("in", X, c(1), c(2))), call("<>", X, c(2))),
    "bounds on a decimal that is unequal": (both(call("<=", D, E), call("<>", D, E)), call("<", D, E)),
    "true is not false": (B, both(call("=", B, c(True)), call("<>", B, c(False)))),
    "what is compared is there": (call("<", Y, c(5)), call("not", call("is_null", Y))),
    "one branch is enough": (call(">", X, c(5)), call("or", call(">", X, c(3)), B)),
    "the same other condition": (both(call("like", T, c("a%")), call(">", X, c(1))), call("like", T, c("a%"))),
    "nothing follows from nothing, all from a contradiction": (
        both(call("<", X, c(1)), call(">", X, c(1))),
        call("=", S, c("x")),
    ),
    "floats and numbers": (call(">", F, c(1.5)), call(">=", F, c(1))),
}
NOT_IMPLIED = {
    "a decimal has a place between two": (both(call(">", D, c(4)), call("<", D, c(6))), call("=", D, c(5))),
    "the other way": (call("<=", D, c(5)), call("<", D, c(5))),
    "another column": (call("<", X, c(5)), call("<", Y, c(9))),
    "what may be null": (call("<", X, c(5)), call("<=", B, c(True))),
    "a longer list": (call("in", X, c(1), c(2), c(4)), call("in", X, c(1), c(2), c(3))),
    "one of two branches": (call("or", call(">", X, c(3)), B), call(">", X, c(3))),
    "a sum of floats is rounded": (
        both(call("<=", F, call("+", D, c(0.1))), call("<=", D, c(1))),
        call("<=", F, c(1.1)),
    ),
    "a float may be no number": (call("not", call("<", F, c(5.0))), call(">=", F, c(5.0))),
    "text in another order": (call(">", S, c("a")), call(">", S, c("b"))),
    "nothing": (None, call("<", X, c(5))),
}
UNSATISFIABLE = {
    "integers": both(call(">", X, c(1)), call("<", X, c(2))),
    "a cycle": both(call("<", D, E), call("<=", E, D)),
    "two values": both(call("=", T, c("a")), call("=", T, c("b"))),
    "a list outside the bounds": both(call("in", X, c(1), c(2)), call(">", X, c(2))),
    "null and compared": both(call("is_null", Y), call(">", Y, c(2))),
    "a condition and its opposite": both(call("like", T, c("a%")), call("not", call("like", T, c("a%")))),
    "false": c(False),
    "unknown": Constant(None, "bool"),
    "compared with null": call("<", X, Constant(None, "int")),
}


@pytest.mark.parametrize(("p", "q"), IMPLIED.values(), ids=IMPLIED)
def test_it_follows(p: Expression, q: Expression) -> None:
    assert implies(p, q)
    assert minimised(both(p, q)) == minimised(p)


@pytest.mark.parametrize(("p", "q"), NOT_IMPLIED.values(), ids=NOT_IMPLIED)
def test_it_does_not_follow(p: Expression | None, q: Expression) -> None:
    assert not implies(p, q)


@pytest.mark.parametrize("predicate", UNSATISFIABLE.values(), ids=UNSATISFIABLE)
def test_nothing_satisfies_it(predicate: Expression) -> None:
    assert not satisfiable(predicate)
    assert minimised(predicate) == FALSE
    assert implies(predicate, call("=", S, c("anything")))


def test_everything_implies_no_predicate() -> None:
    assert implies(call("<", X, c(5)), None)
    assert implies(None, None)
    assert minimised(None) is None


def test_query_2_lies_within_query_1() -> None:
    """StreamGlobe, figure 4: the predicates of Query 2 imply those of Query 1, and not the other way."""
    ra, dec, en = (Column("p", ("coord", "cel", name), "decimal") for name in ("ra", "dec", "en"))
    vela = both(
        call(">=", ra, c(Decimal("120.0"))),
        call("<=", ra, c(Decimal("138.0"))),
        call(">=", dec, c(Decimal("-49.0"))),
        call("<=", dec, c(Decimal("-40.0"))),
    )
    rxj = both(
        call(">=", en, c(Decimal("1.3"))),
        call(">=", ra, c(Decimal("130.5"))),
        call("<=", ra, c(Decimal("135.5"))),
        call(">=", dec, c(Decimal("-48.0"))),
        call("<=", dec, c(Decimal("-45.0"))),
    )
    assert implies(rxj, vela)
    assert not implies(vela, rxj)
    assert graph_of(vela).range_of(ra) == (120, 138)
    assert set(graph_of(rxj).terms) == {ra, dec, en}


def test_long_predicates_do_not_take_long() -> None:
    numbers = [c(number) for number in range(1000)]
    among = both(call("in", X, *numbers), call(">", X, c(500)))
    assert implies(among, both(call("<", X, c(1000)), call("in", X, *numbers[501:])))
    apart = both(call(">=", X, c(0)), *(call("<>", X, number) for number in numbers))
    assert implies(apart, call(">=", X, c(1000)))
    assert minimised(apart) == simplified(call(">=", X, c(1000)))


def test_a_predicate_of_many_terms_is_compared_by_what_it_says() -> None:
    columns = [Column("r", (f"c{number}",), "int") for number in range(3 * NODES_MAX)]
    many = both(*(call(">", column, c(5)) for column in columns))
    assert satisfiable(many)
    assert implies(many, both(*(call(">", column, c(5)) for column in reversed(columns))))
    assert implies(many, call(">", columns[0], c(4)))
    assert implies(many, minimised(many))
