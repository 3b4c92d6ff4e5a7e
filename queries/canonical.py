"""The canonical form of a plan and its digest: two texts that ask for the same thing get the same digest.

These do not matter: the aliases of streams, the order of joins, the order and direction of conditions, and how
constants are written. The names and the order of the result's columns do matter, since they are its schema. The
canonical plan is itself a plan and evaluates to the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Final, NamedTuple, assert_never

import msgspec

from queries.binder import joined
from queries.expressions import Column, Constant, Expression, Named, conjunction, conjuncts, inputs_of, rewritten
from queries.plan import (
    Aggregate,
    Choice,
    Each,
    Element,
    Join,
    Nest,
    Operator,
    Output,
    Project,
    Restructure,
    Select,
    Source,
    Template,
    Union,
    Window,
    WindowAggregate,
    sources,
)
from queries.restructure import expressions_in
from queries.simplify import order_of, plain_number, simplified, simplified_conjuncts

ORDERS_MAX: Final = 64  # Orders tried among sources that look alike; beyond that the order of the text decides.
# For more than five sources fewer are tried, because each costs about the square of their number.
_EFFORT: Final = 2048


def canonical(plan: Operator) -> Operator:
    """The one representative of all plans that differ only in how they are written."""
    return _canonical(plan, (), hidden=False, first=0).plan


def digest(plan: Operator) -> str:
    """The name of what a plan computes: the same on every peer and in every run."""
    return sha256(msgspec.msgpack.encode(canonical(plan))).hexdigest()


def aliases(plan: Operator) -> dict[str, str]:
    """For each input with columns in the result of a plan, its alias in the canonical plan.

    A join that serves two queries has its columns under these names, whatever the queries call them.
    """
    return {alias: new for alias, (new, _) in _canonical(plan, (), hidden=False, first=0).names.items()}


# For each alias of an input, its new alias and its renamed columns.
_Names = Mapping[str, tuple[str, Mapping[str, str]]]
# What reads the columns of an operator: a place that does not depend on aliases, and an expression.
_Uses = Sequence[tuple[str, Expression]]


class _Canonical(NamedTuple):
    plan: Operator
    names: _Names


def _canonical(plan: Operator, uses: _Uses, *, hidden: bool, first: int) -> _Canonical:
    """The canonical form of an operator; `hidden` means that its column names do not reach the result.

    Its aliases are numbered from `first` on.
    """
    match plan:
        case Source() | Select() | Join():
            return _of_group(plan, uses, hidden=hidden, first=first)
        case Project(input=inner, outputs=outputs, alias=alias):
            places = [(f"{number} {each.name}", each.expression) for number, each in enumerate(outputs)]
            below = _canonical(inner, places, hidden=True, first=first)
            renamed = {each.name: f"o{number}" for number, each in enumerate(outputs) if hidden}
            named = tuple(
                Named(renamed.get(each.name, each.name), _renamed(each.expression, below.names)) for each in outputs
            )
            new = _alias_above(alias, below.plan, first)
            return _Canonical(Project(below.plan, named, new), {alias: (new, renamed)})
        case Nest():
            return _of_nest(plan, uses, first=first)
        case WindowAggregate():
            return _of_aggregate(plan, hidden=hidden, first=first)
        case Union(branches=branches):
            return _of_union(branches, hidden=hidden)
        case Restructure(input=inner, content=content, envelope=envelope):
            places = [(str(number), each) for number, each in enumerate(expressions_in(content))]
            below = _canonical(inner, places, hidden=True, first=first)
            return _Canonical(Restructure(below.plan, _content(content, below.names, 0), envelope), {"": ("", {})})
    assert_never(plan)


def _renamed(expression: Expression, names: _Names) -> Expression:
    """The expression with renamed columns, simplified again because its order may depend on names."""

    def change(node: Expression) -> Expression:
        if isinstance(node, Column) and node.input in names:
            alias, columns = names[node.input]
            path = (columns.get(node.path[0], node.path[0]), *node.path[1:])
            return msgspec.structs.replace(node, input=alias, path=path)
        return node

    return simplified(rewritten(expression, change))


def _alias_above(alias: str, plan: Operator, first: int) -> str:
    """The new alias of a plan's output for the operators above it."""
    return f"s{first + _taken(plan)}" if alias else ""


def _taken(plan: Operator) -> int:
    """How many aliases a plan has."""
    return sum(1 for _ in _named_operators(plan))


def _named_operators(plan: Operator) -> Iterable[Operator]:
    for each in plan.inputs:
        yield from _named_operators(each)
    if isinstance(plan, Source) or (isinstance(plan, Project | WindowAggregate) and plan.alias):
        yield plan


# Selections and joins: a group of inputs and the conditions over them, whatever the order of the text.

_Leaf = Source | WindowAggregate


def _of_group(plan: Operator, uses: _Uses, *, hidden: bool, first: int) -> _Canonical:
    leaves, predicate = flattened(plan)
    parts = simplified_conjuncts(conjunction(predicate))
    if len(leaves) == 1 and not isinstance(leaves[0], Source):
        below = _canonical(leaves[0], (), hidden=hidden, first=first)
        own = _sorted_conjunction(parts, below.names)
        return below if own is None else _Canonical(Select(below.plan, own), below.names)
    group = [leaf for leaf in leaves if isinstance(leaf, Source | WindowAggregate)]
    assert len(group) == len(leaves), "a join reads streams and windows of streams"
    uses = [(place, simplified(each)) for place, each in uses]
    by_alias = {leaf.alias: leaf for leaf in group}
    best: tuple[list[bytes], _Canonical] | None = None
    for order in _orders(group, parts, uses):
        names: dict[str, tuple[str, Mapping[str, str]]] = {}
        inputs: list[_Leaf] = []
        for alias in order:
            leaf = _of_leaf(by_alias[alias], first + sum(map(_taken, inputs)))
            names |= leaf.names
            assert isinstance(leaf.plan, Source | WindowAggregate)
            inputs.append(leaf.plan)
        candidate = _Canonical(joined(inputs, conjuncts(_sorted_conjunction(parts, names))), names)
        shown = sorted(msgspec.msgpack.encode([place, _renamed(each, names)]) for place, each in uses)
        encoded = [msgspec.msgpack.encode(candidate.plan), *shown]
        if best is None or encoded < best[0]:
            best = (encoded, candidate)
    assert best is not None, "there is at least one order"
    return best[1]


def flattened(plan: Operator) -> tuple[list[Operator], tuple[Expression, ...]]:
    """What selections and joins combine: their inputs, left to right, and their conditions."""
    match plan:
        case Select(input=inner, predicate=predicate):
            leaves, parts = flattened(inner)
            return leaves, (*parts, predicate)
        case Join(left=left, right=right, predicate=condition):
            lefts, left_parts = flattened(left)
            rights, right_parts = flattened(right)
            return lefts + rights, (*left_parts, *right_parts, *conjuncts(condition))
    return [plan], ()


def _sorted_conjunction(parts: Sequence[Expression], names: _Names) -> Expression | None:
    return conjunction(tuple(sorted((_renamed(part, names) for part in parts), key=order_of)))


def _of_leaf(leaf: _Leaf, first: int) -> _Canonical:
    """An input of a join, with aliases numbered from `first` on."""
    if isinstance(leaf, Source):
        return _Canonical(_source(leaf, f"s{first}"), {leaf.alias: (f"s{first}", {})})
    return _of_aggregate(leaf, hidden=True, first=first)


def _source(source: Source, alias: str) -> Source:
    window = None if source.window is None else _window(source.window)
    return msgspec.structs.replace(source, alias=alias, window=window)


def _window(window: Window) -> Window:
    """The window with its numbers in one form: 20 for 20.0."""
    slide = None if window.slide is None else _plain(window.slide)
    return msgspec.structs.replace(window, size=_plain(window.size), slide=slide)


def _plain(number: int | Decimal) -> int | Decimal:
    plain: int | Decimal = plain_number(Constant.of(number)).python
    return plain


def _orders(group: Sequence[_Leaf], parts: Sequence[Expression], uses: _Uses) -> Iterable[tuple[str, ...]]:
    """Orders of the inputs that do not depend on their aliases; just one if no two inputs look alike.

    Sources are told apart by what they are, then repeatedly by what the conditions and the result say of them and of
    their neighbours (colour refinement). Among those still alike, each is tried as the first.
    """
    inside = {each.alias: _of_leaf(each, 0) for each in group}
    # The columns of windows by what they are. The aliases stay, since they are what is to be ordered.
    known: _Names = {alias: (alias, leaf.names[alias][1]) for alias, leaf in inside.items()}
    places = [(place, _renamed(each, known)) for place, each in (*(("", part) for part in parts), *uses)]
    streams = {alias: sources(leaf.plan)[0].stream for alias, leaf in inside.items()}
    start = {alias: _digest(leaf.plan) for alias, leaf in inside.items()}
    waiting = [start]
    left = max(1, min(ORDERS_MAX, _EFFORT // len(group) ** 2))
    while waiting and left:
        colours = _refined(waiting.pop(), places)
        alike: dict[bytes, list[str]] = {}
        for alias, colour in colours.items():
            alike.setdefault(colour, []).append(alias)
        ambiguous = min((colour for colour, same in alike.items() if len(same) > 1), default=None)
        if ambiguous is None:
            left -= 1
            yield tuple(sorted(colours, key=lambda alias: (streams[alias], colours[alias])))
        else:
            chosen = _digest([ambiguous, "first"])
            waiting += [colours | {alias: chosen} for alias in reversed(alike[ambiguous])]


def _refined(colours: dict[str, bytes], places: _Uses) -> dict[str, bytes]:
    while len(dict.fromkeys(colours.values())) < len(colours):
        refined = {}
        others: dict[str, tuple[str, Mapping[str, str]]] = {alias: (each.hex(), {}) for alias, each in colours.items()}
        for alias, colour in colours.items():
            names = others | {alias: ("*", {})}
            seen = [_digest([place, _renamed(each, names)]) for place, each in places if alias in inputs_of(each)]
            refined[alias] = _digest([colour, *sorted(seen)])
        if len(dict.fromkeys(refined.values())) == len(dict.fromkeys(colours.values())):
            return colours
        colours = refined
    return colours


def _digest(what: object) -> bytes:
    return sha256(msgspec.msgpack.encode(what)).digest()


# Aggregates, unions and documents.


def _of_nest(plan: Nest, uses: _Uses, *, first: int) -> _Canonical:
    """The rows first, then the list, because the predicate of the list reads both."""
    asked = [(f"nest {number}", part) for number, part in enumerate(conjuncts(plan.predicate))]
    below = _canonical(plan.input, [*uses, *asked], hidden=True, first=first)
    nested = _canonical(plan.nested, asked, hidden=False, first=first + _taken(below.plan))
    own = _sorted_conjunction(simplified_conjuncts(plan.predicate), {**below.names, **nested.names})
    name = f"n{first + _taken(below.plan)}"
    lists = {**(below.names[""][1] if "" in below.names else {}), plan.name: name}
    return _Canonical(Nest(below.plan, nested.plan, own, name), {**below.names, "": ("", lists)})


def _of_aggregate(plan: WindowAggregate, *, hidden: bool, first: int) -> _Canonical:
    uses = [("key", key.expression) for key in plan.keys]
    uses += [(f"{each.function} {each.distinct}", each.argument) for each in plan.aggregates if each.argument]
    below = _canonical(_without_window(plan.input), uses, hidden=True, first=first)
    keys = [msgspec.structs.replace(key, expression=_renamed(key.expression, below.names)) for key in plan.keys]
    results = [
        msgspec.structs.replace(each, argument=None if each.argument is None else _renamed(each.argument, below.names))
        for each in plan.aggregates
    ]
    renamed: dict[str, str] = {}
    if hidden:
        keys = _numbered_keys(keys, renamed)
        results = _numbered_results(results, renamed)
    window = _window(plan.window)
    if window.slide is None:
        window = msgspec.structs.replace(window, slide=window.size)
    alias = _alias_above(plan.alias, below.plan, first)
    return _Canonical(
        WindowAggregate(below.plan, window, tuple(keys), tuple(results), alias), {plan.alias: (alias, renamed)}
    )


def _numbered_keys(keys: list[Named], renamed: dict[str, str]) -> list[Named]:
    different = sorted(dict.fromkeys(key.expression for key in keys), key=order_of)
    names = {expression: f"k{number}" for number, expression in enumerate(different)}
    renamed.update({key.name: names[key.expression] for key in keys})
    return [Named(name, expression) for expression, name in names.items()]


def _numbered_results(results: list[Aggregate], renamed: dict[str, str]) -> list[Aggregate]:
    unnamed = {each.name: msgspec.structs.replace(each, name="") for each in results}
    different = sorted(dict.fromkeys(unnamed.values()), key=msgspec.msgpack.encode)
    names = {each: f"a{number}" for number, each in enumerate(different)}
    renamed.update({name: names[each] for name, each in unnamed.items()})
    return [msgspec.structs.replace(each, name=name) for each, name in names.items()]


def _without_window(plan: Operator) -> Operator:
    """A lone source below an aggregate, which has the window; the source only says whether it numbers its rows."""
    match plan:
        case Select(input=inner, predicate=predicate):
            return Select(_without_window(inner), predicate)
        case Source(window=Window(kind="rows") as window) if window.slide is None:
            return msgspec.structs.replace(plan, window=msgspec.structs.replace(window, slide=window.size))
        case Source(window=Window(kind="time" | "value")):
            return msgspec.structs.replace(plan, window=None)
    return plan


def _of_union(branches: tuple[Operator, ...], *, hidden: bool) -> _Canonical:
    """The branches in order, each with the column names of the first: those are the names of the result."""
    names = [column.path[-1] for column in branches[0].columns]
    flat = [leaf for branch in branches for leaf in (branch.branches if isinstance(branch, Union) else (branch,))]
    every = [_canonical(_with_names(branch, names), (), hidden=hidden, first=0) for branch in flat]
    ordered = sorted((each.plan for each in every), key=msgspec.msgpack.encode)
    return _Canonical(Union(tuple(ordered)), every[0].names)


def _with_names(plan: Operator, names: list[str]) -> Operator:
    if isinstance(plan, Project):
        outputs = (Named(name, each.expression) for name, each in zip(names, plan.outputs, strict=True))
        return msgspec.structs.replace(plan, outputs=tuple(outputs))
    return plan


def _content(content: tuple[Template, ...], names: _Names, depth: int) -> tuple[Template, ...]:
    return tuple(_template(part, names, depth) for part in content)


def _template(part: Template, names: _Names, depth: int) -> Template:
    match part:
        case Element(tag=tag, content=content):
            return Element(tag, _content(content, names, depth))
        case Output():
            return msgspec.structs.replace(part, expression=_renamed(part.expression, names))
        case Choice(condition=condition, then=then, otherwise=otherwise):
            return Choice(_renamed(condition, names), _content(then, names, depth), _content(otherwise, names, depth))
        case Each(variable=variable, over=over, where=where, content=content):
            inside = {**names, variable: (f"v{depth}", {})}
            kept = None if where is None else _renamed(where, inside)
            return Each(f"v{depth}", _renamed(over, names), kept, _content(content, inside, depth + 1))
    assert_never(part)
