"""StreamGlobe's matching as printed (algorithms 2 and 3, section 3.3): does a stream hold what a query needs?

It compares properties, which SQL and WXQuery have alike. `residual.py` says what is left of the query then, and goes
further. Departures: what follows from a predicate is decided exactly; equal windows always fit (60 step 40 is not a
multiple of itself); a filtered aggregate serves only windows of the same size and step.
"""

from __future__ import annotations

from experiments.streamglobe.windows import divides, extent, is_alike
from queries.plan import Window
from queries.predicates import implies
from queries.properties import AggregateProperties, Grouping, InputProperties, Path


def match_properties(p: InputProperties, new: InputProperties) -> bool:
    """MATCHPROPERTIES: for each operator that made the stream, the query has one that asks for no more.

    A stream without a projection has every element; `Π` of an aggregate is its results.
    """
    if p.stream != new.stream:
        return False
    if p.grouping is not None:
        return match_aggregations(p, new)
    return match_predicates(p, new) and has_elements(p.returned, new.referenced)


def match_predicates(p: InputProperties, new: InputProperties) -> bool:
    """MATCHPREDICATES: whatever the query keeps is in the stream."""
    return implies(new.predicate, p.predicate)


def has_elements(returned: tuple[Path, ...], referenced: tuple[Path, ...]) -> bool:
    """Whether the elements that a stream holds unchanged include all that a query refers to."""
    return all(any(path[: len(each)] == each for each in returned) for path in referenced)


def match_aggregations(p: InputProperties, new: InputProperties) -> bool:
    """MATCHAGGREGATIONS: the same function of the same element of the same rows, and windows that fit."""
    own, other = p.grouping, new.grouping
    if own is None or other is None:
        return False
    if own.keys != other.keys or not all(any(serves(one, each) for one in own.aggregates) for each in other.aggregates):
        return False
    if not (implies(p.predicate, new.predicate) and implies(new.predicate, p.predicate)):
        return False
    if own.having is not None:
        return is_same_window(own.window, other.window) and _filters_more(own, other)
    return is_same_window(own.window, other.window) or divides(own.window, other.window)


def serves(one: AggregateProperties, other: AggregateProperties) -> bool:
    """Whether results of one aggregate give the other. An average travels as sum and count, and gives these as well."""
    if one.function == "avg" and other.function in ("sum", "count") and not (one.distinct or other.distinct):
        return one.argument == other.argument
    return one == other


def is_same_window(one: Window, other: Window) -> bool:
    return is_alike(one, other) and extent(one) == extent(other)


def _filters_more(own: Grouping, other: Grouping) -> bool:
    return other.having is not None and implies(other.having, own.having)
