"""The predicate graph of StreamGlobe, section 3.1: is a conjunction satisfiable, what is its minimal form, what
follows.

Terms are nodes and bounds between them are edges (queries/closure.py). Other conditions (<>, IN) can only tighten
bounds. q follows from p if p contradicts the negation of q.

The answer is exact for conjunctions of `v θ c` and `v θ w + c` with θ one of =, <, <=, >, >=, as long as sums stay
within 64 bits and 38 digits. Beyond that (<>, IN, OR, other functions) it is safe: whatever is said to follow does
follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Final

from queries import atoms
from queries.atoms import INTEGRAL, TEXTUAL, ZERO, Atom, Bound, Member, Never, Null, Unequal
from queries.closure import Closure
from queries.expressions import Call, Constant, Expression, conjunction
from queries.simplify import FALSE, simplified, simplified_conjuncts

NODES_MAX: Final = 48  # Beyond so many terms, further conjuncts are only compared for equality.
BRANCHED_MAX: Final = 16  # With more branching conjuncts (IN, OR) than this, none is dropped from the minimal form.


@lru_cache(maxsize=1024)
def graph_of(predicate: Expression | None) -> PredicateGraph:
    """The graph of a predicate; None is always true."""
    return PredicateGraph(simplified_conjuncts(predicate))


def satisfiable(predicate: Expression | None) -> bool:
    """Whether some row can satisfy the predicate.

    >>> from queries.expressions import Column
    >>> from queries.functions import call
    >>> x = Column("r", ("x",), "int")
    >>> satisfiable(call("and", call("<", Constant(1, "int"), x), call("<", x, Constant(2, "int"))))
    False
    """
    return graph_of(predicate).satisfiable


def implies(p: Expression | None, q: Expression | None) -> bool:
    """Whether q is true on every row on which p is true."""
    return graph_of(p).implies(graph_of(q))


def minimised(predicate: Expression | None) -> Expression | None:
    """The same predicate without the parts that follow from the rest; FALSE if no row satisfies it.

    >>> from queries.expressions import Column
    >>> from queries.functions import call
    >>> x, y = Column("r", ("x",), "int"), Column("r", ("y",), "int")
    >>> parts = call("<", x, Constant(5, "int")), call("<=", x, Constant(9, "int")), call("<=", y, x)
    >>> print(minimised(call("and", *parts, call("<", y, Constant(7, "int")))))
    r.x <= 4 AND r.y <= r.x
    """
    return graph_of(predicate).minimised


@dataclass(frozen=True)
class PredicateGraph:
    """A conjunction, closed under everything that follows from it."""

    conjuncts: tuple[Expression, ...]
    _system: _System = field(init=False)
    _beyond: tuple[Expression, ...] = field(init=False)  # Conjuncts that did not fit the graph.

    def __post_init__(self) -> None:
        system = _System()
        beyond = [conjunct for conjunct in self.conjuncts if not system.add(conjunct)]
        system.solve()
        object.__setattr__(self, "_system", system)
        object.__setattr__(self, "_beyond", tuple(beyond))

    @property
    def satisfiable(self) -> bool:
        return self._system.consistent

    @property
    def terms(self) -> tuple[Expression, ...]:
        """The terms of the predicate: all nodes of the graph but zero and the constants."""
        return tuple(node for node in self._system.nodes if not isinstance(node, Constant))

    @property
    def minimised(self) -> Expression | None:
        if not self.satisfiable:
            return FALSE
        kept = self._needed()
        if len(kept) < len(self.conjuncts):
            return PredicateGraph(kept).minimised
        whole = conjunction((*self._system.reduced(), *self._beyond))
        return None if whole is None else simplified(whole)

    def _needed(self) -> tuple[Expression, ...]:
        """The conjuncts without those branching ones that follow from the others; the graph reduces the bounds."""
        kept = list(self.conjuncts)
        branched = [part for part in kept if isinstance(part, Call) and part.function in ("in", "or")]
        for part in branched if len(branched) <= BRANCHED_MAX else ():
            rest = [each for each in kept if each != part]
            if PredicateGraph(tuple(rest)).implies(PredicateGraph((part,))):
                kept = rest
        return tuple(kept)

    def range_of(self, term: Expression) -> tuple[Fraction | None, Fraction | None]:
        """The least and the greatest number that a term can be; None if there is no limit."""
        low, high = self._system.low(term), self._system.high(term)
        return (
            low[0] if low and isinstance(low[0], Fraction) else None,
            high[0] if high and isinstance(high[0], Fraction) else None,
        )

    def implies(self, other: PredicateGraph) -> bool:
        if not self.satisfiable:
            return True
        own = dict.fromkeys(self.conjuncts)
        return all(conjunct in own or self._implies(conjunct) for conjunct in other.conjuncts)

    def _implies(self, conjunct: Expression) -> bool:
        if isinstance(conjunct, Call) and conjunct.function == "or":
            return self._system.holds(conjunct) or any(self.implies(graph_of(part)) for part in conjunct.arguments)
        return self._system.holds(conjunct) or all(self._system.entails(atom) for atom in atoms.atoms_of(conjunct))


_Limit = tuple[Fraction | str, bool]  # A value, and whether the value itself is excluded.


@dataclass(slots=True)
class _System:
    """The atoms of a conjunction, and the closure of its bounds."""

    nodes: dict[Expression, int] = field(default_factory=lambda: {ZERO: 0})
    bounds: list[Bound] = field(default_factory=list)
    unequal: list[Unequal] = field(default_factory=list)
    # The constants that each term is unequal to.
    excluded: dict[Expression, dict[Fraction | str, None]] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    nulls: dict[Expression, None] = field(default_factory=dict)
    present: dict[Expression, None] = field(default_factory=dict)
    consistent: bool = True
    closure: Closure = field(default_factory=lambda: Closure({ZERO: 0}, 1, [[0]]))

    def add(self, conjunct: Expression) -> bool:
        """Add a conjunct; False if there is no room for its terms."""
        said = atoms.atoms_of(conjunct)
        new = dict.fromkeys(node for atom in said for node in _nodes_of(atom) if node not in self.nodes)
        if len(self.nodes) + len(new) > NODES_MAX:
            return False
        for node in new:
            self.nodes[node] = len(self.nodes)
        self.present.update(dict.fromkeys(atoms.present_in(conjunct)))
        for atom in said:
            self._add_atom(atom)
        return True

    def _add_atom(self, atom: Atom) -> None:
        match atom:
            case Bound():
                self.bounds.append(atom)
            case Unequal():
                self.unequal.append(atom)
                if (value := _excluded_by(atom)) is not None:
                    self.excluded.setdefault(atom.left, {})[value] = None
            case Member():
                self.members.append(atom)
            case Null(term=term, null=True):
                self.nulls[term] = None
            case Never():
                self.consistent = False

    def solve(self) -> None:
        """Close the bounds, and let inequalities and memberships tighten them until nothing changes."""
        if any(term in self.present or not term.nullable for term in self.nulls):
            self.consistent = False
        while self.consistent:
            closure = Closure.of(self.nodes, [*self.bounds, *_background(self.nodes)])
            if closure is None:
                self.consistent = False
                return
            self.closure = closure
            tighter = self._tighter()
            if not tighter:
                return
            self.bounds.extend(tighter)

    def _tighter(self) -> list[Bound]:
        """New bounds that follow from inequalities and memberships."""
        found: list[Bound] = []
        for each in self.unequal:
            if each.right != ZERO:
                one, other = Bound(each.left, each.right, each.offset), Bound(each.right, each.left, -each.offset)
                found += [replace(bound, strict=True) for bound in (one, other) if self.closure.has(bound)]
        for term in self.excluded:
            found += self._inside(term)
        for member in self.members:
            candidates = self.candidates(member)
            if not candidates:
                self.consistent = False
                return []
            numbers = [number for value in candidates if (number := atoms.number_of(value)) is not None]
            if numbers:
                found += [Bound(member.term, ZERO, max(numbers)), Bound(ZERO, member.term, -min(numbers))]
        return [bound for bound in found if not self.closure.has(bound)]

    def _inside(self, term: Expression) -> Iterator[Bound]:
        """The limits of a term, moved inwards past the numbers it cannot be."""
        low, high = self.low(term), self.high(term)
        if low is not None and isinstance(low[0], Fraction) and low[0] in self.excluded[term]:
            yield Bound(ZERO, term, -self._passed(term, low[0], 1), strict=term.type not in INTEGRAL)
        if high is not None and isinstance(high[0], Fraction) and high[0] in self.excluded[term]:
            yield Bound(term, ZERO, self._passed(term, high[0], -1), strict=term.type not in INTEGRAL)

    def _passed(self, term: Expression, number: Fraction, step: int) -> Fraction:
        while term.type in INTEGRAL and number in self.excluded[term]:
            number += step
        return number

    # The values that a term can still have.

    def high(self, term: Expression) -> _Limit | None:
        if term.type not in TEXTUAL:
            return self.closure.weight(term, ZERO) if term in self.nodes else None
        return min(self._texts(term, below=False), key=lambda limit: (limit[0], not limit[1]), default=None)

    def low(self, term: Expression) -> _Limit | None:
        if term.type not in TEXTUAL:
            known = self.closure.weight(ZERO, term) if term in self.nodes else None
            return None if known is None else (-known[0], known[1])
        return max(self._texts(term, below=True), default=None)

    def _texts(self, term: Expression, *, below: bool) -> list[tuple[str, bool]]:
        """The constants that bound a textual term."""
        found = []
        for node in self.nodes:
            if isinstance(node, Constant) and node.type == term.type and term in self.nodes:
                known = self.closure.weight(node, term) if below else self.closure.weight(term, node)
                if known is not None:
                    found.append((str(node.value), known[1]))
        return found

    def allows(self, term: Expression, value: Fraction | str) -> bool:
        """Whether the limits of a term allow this value."""
        low, high = self.low(term), self.high(term)
        if low is not None and not _is_below(low[0], value, strict=low[1]):
            return False
        if high is not None and not _is_below(value, high[0], strict=high[1]):
            return False
        return value not in self.excluded.get(term, {})

    def candidates(self, member: Member) -> tuple[Constant, ...]:
        """The values of a membership that everything else allows."""
        return tuple(value for value in member.values if self.allows(member.term, _value_of(value)))

    # What follows.

    def holds(self, condition: Expression) -> bool:
        """Whether a condition is itself a term, and true."""
        return condition in self.nodes and self.closure.has(Bound(ZERO, condition, Fraction(-1)))

    def entails(self, atom: Atom) -> bool:
        """Whether the atom holds wherever the system does."""
        match atom:
            case Never():
                return False
            case Null(term=term, null=True):
                return term in self.nulls
            case Null(term=term):
                return term in self.present or not term.nullable
            case Member(term=term):
                return term in self.nodes and self._entails_member(atom)
            case Bound(left=left, right=right) | Unequal(left=left, right=right) if left.type in TEXTUAL and (
                isinstance(left, Constant) or isinstance(right, Constant)
            ):
                return self._entails_text(atom)
        if any(node not in self.nodes for node in _nodes_of(atom)):
            return False
        if isinstance(atom, Bound):
            if self.closure.has(atom):
                return True
            return not self._closure_tells_all(atom) and not self._with(atom.negated).consistent
        equal = (Bound(atom.left, atom.right, atom.offset), Bound(atom.right, atom.left, -atom.offset))
        return not self._with(*equal).consistent

    def _closure_tells_all(self, bound: Bound) -> bool:
        """Whether a bound that is not in the closure certainly does not follow, so that its negation need not be tried.

        Between two terms that are not integral, integral ones can round more than a path between the two shows.
        """
        if self.unequal or self.members:
            return False
        return not self._is_mixed or bound.left.type in INTEGRAL or bound.right.type in INTEGRAL

    @property
    def _is_mixed(self) -> bool:
        """Whether some terms round their bounds and others do not."""
        integral = [node.type in INTEGRAL for node in self.nodes if not isinstance(node, Constant)]
        return any(integral) and not all(integral)

    def _with(self, *more: Atom) -> _System:
        system = _System(dict(self.nodes), list(self.bounds))
        for atom in (*self.unequal, *self.members, *more):
            system._add_atom(atom)
        system.solve()
        return system

    def _entails_member(self, atom: Member) -> bool:
        wanted = dict.fromkeys(map(_value_of, atom.values))
        for member in self.members:
            if member.term == atom.term and all(_value_of(value) in wanted for value in self.candidates(member)):
                return True
        if atom.term.type in TEXTUAL:
            low, high = self.low(atom.term), self.high(atom.term)
            return low is not None and high is not None and low[0] == high[0] and low[0] in wanted
        others = (Unequal(atom.term, ZERO, number) for number in wanted if isinstance(number, Fraction))
        return not self._with(*others).consistent

    def _entails_text(self, atom: Bound | Unequal) -> bool:
        """Text has no sums: a constant is inside or outside of the limits of a term."""
        upper = isinstance(atom.right, Constant)
        term, constant = (atom.left, atom.right) if upper else (atom.right, atom.left)
        assert isinstance(constant, Constant), "a bound between two terms needs no limits"
        value = _value_of(constant)
        if isinstance(atom, Unequal):
            memberships = [member for member in self.members if member.term == term]
            out = any(value not in map(_value_of, self.candidates(member)) for member in memberships)
            return term in self.nodes and (out or not self.allows(term, value))
        limit = self.high(term) if upper else self.low(term)
        if limit is None:
            return False
        strict = atom.strict and not limit[1]
        return _is_below(limit[0], value, strict=strict) if upper else _is_below(value, limit[0], strict=strict)

    # The minimal form.

    def rules_out(self, each: Unequal) -> bool:
        """Whether the bounds alone keep the two sides unequal."""
        value = _excluded_by(each)
        return self.entails(each) if value is None else not self.allows(each.left, value)

    def reduced(self) -> list[Expression]:
        """Equivalent conditions without those that follow from the others."""
        fixed = list(self.closure.fixed())
        listed = dict.fromkeys(member.term for member in self.members)
        bounds = [bound for bound in self.closure.reduced() if not _is_known(bound) and _bounded(bound) not in listed]
        both_ways = [turned for bound in fixed for turned in (bound, Bound(bound.right, bound.left, -bound.offset))]
        if self._is_mixed:
            bounds = self._without_rounded(both_ways, bounds)
        rest = self._of_bounds([*both_ways, *bounds])
        free = dict.fromkeys(node for node, head in self.closure.heads().items() if node == head)
        said = [bound.equality() for bound in fixed]
        said += [bound.expression() for bound in bounds]
        said += [each.expression() for each in self.unequal if not rest.rules_out(each)]
        said += [
            Member(member.term, self.candidates(member)).expression() for member in self.members if member.term in free
        ]
        said += [Null(term, null=True).expression() for term in self.nulls]
        present = dict.fromkeys(term for each in said for term in atoms.present_in(each))
        absent = [term for term in self.present if term.nullable and term not in present]
        return said + [Null(term, null=False).expression() for term in absent if not isinstance(term, Call)]

    def _without_rounded(self, fixed: list[Bound], bounds: list[Bound]) -> list[Bound]:
        """The bounds without those that follow only once a path is rounded, which the closure does not show."""
        kept = list(bounds)
        for bound in bounds:
            rest = [each for each in kept if each != bound]
            if self._of_bounds([*fixed, *rest]).entails(bound):
                kept = rest
        return kept

    def _of_bounds(self, bounds: list[Bound]) -> _System:
        system = _System(dict(self.nodes), bounds)
        system.solve()
        return system


def _nodes_of(atom: Atom) -> tuple[Expression, ...]:
    match atom:
        case Bound(left=left, right=right) | Unequal(left=left, right=right):
            return (left, right)
        case Member(term=term):
            return (term,)
    return ()


def _value_of(constant: Constant) -> Fraction | str:
    number = atoms.number_of(constant)
    return str(constant.value) if number is None else number


def _excluded_by(each: Unequal) -> Fraction | str | None:
    """The constant that a term is unequal to; None if it is unequal to another term."""
    if each.right == ZERO:
        return each.offset
    return str(each.right.value) if isinstance(each.right, Constant) else None


def _is_below(one: Fraction | str, other: Fraction | str, *, strict: bool) -> bool:
    if isinstance(one, Fraction):
        assert isinstance(other, Fraction), "numbers are compared with numbers"
        return one < other or (one == other and not strict)
    assert isinstance(other, str), "text is compared with text"
    return one < other or (one == other and not strict)


def _is_known(bound: Bound) -> bool:
    """Whether it holds for every row: false is 0 and true is 1."""
    term, number = (bound.right, 0) if bound.left == ZERO else (bound.left, 1)
    return term.type == "bool" and ZERO in (bound.left, bound.right) and bound.offset == number and not bound.strict


def _bounded(bound: Bound) -> Expression | None:
    """The term of a bound by a constant."""
    if bound.left == ZERO or bound.right == ZERO:
        return bound.right if bound.left == ZERO else bound.left
    return None


def _background(nodes: Iterable[Expression]) -> list[Bound]:
    """What holds for every row: false and true are 0 and 1, and text constants have their order."""
    every = list(nodes)
    known = []
    for node in every:
        if node.type == "bool" and not isinstance(node, Constant):
            known += [Bound(ZERO, node), Bound(node, ZERO, Fraction(1))]
    for kind in TEXTUAL:
        texts = [node for node in every if isinstance(node, Constant) and node.type == kind]
        texts.sort(key=lambda node: str(node.value))
        known += [Bound(one, other, strict=True) for one, other in pairwise(texts)]
    return known
