"""An index of selections: given a row, it finds the things whose condition the row may meet.

A thing is filed under one comparison of an attribute with a constant: an equality if its condition has one, else a
bound (`<`, `<=`, `>`, `>=`). A thing without such a comparison is found by every row. A lookup may find too much, never
too little: whoever asks checks the whole condition after it. The things are the queries of a join
(`join_index/selections.py`), or the selections on a stream that a host reads (`sieve.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from protocols.join_index.keys import at_path, value_text
from protocols.join_index.messages import ValueText
from queries.compile import OnRow
from queries.expressions import Call, Column, Constant, Expression
from queries.schema import Row, Schema

Thing = TypeVar("Thing")
# The same comparison with its arguments exchanged.
_TURNED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NUMBERS: Final = (int, float, Decimal)
_bound = itemgetter(0)


class Comparison(NamedTuple):
    """An attribute compared with a constant."""

    path: tuple[str, ...]
    sign: str
    value: Any
    limit: Any = None  # The bound on the other side of the same attribute, if there is one.


def comparison_in(parts: Iterable[Expression], is_own: Callable[[Column], bool]) -> Comparison | None:
    """The comparison to file a conjunction under; None: every row may be wanted."""
    bounds: list[Comparison] = []
    for part in parts:
        if not isinstance(part, Call) or part.function not in _TURNED:
            continue
        match part.arguments:
            case (Column() as column, Constant() as constant):
                sign = part.function
            case (Constant() as constant, Column() as column):
                sign = _TURNED[part.function]
            case _:
                continue
        if not is_own(column) or column.path[0].startswith("$"):
            continue
        value = constant.python
        if sign == "=":
            return Comparison(column.path, sign, value)
        if is_number(value):
            bounds.append(Comparison(column.path, sign, value))
    if not bounds:
        return None
    first, *others = bounds
    limits = (each.value for each in others if each.path == first.path and each.sign[0] != first.sign[0])
    return first._replace(limit=next(limits, None))


def getter(schema: Schema, path: tuple[str, ...]) -> OnRow:
    """A function from rows to the value at a path."""
    if len(path) == 1:
        return itemgetter(next(place for place, each in enumerate(schema.fields) if each.name == path[0]))
    return lambda row: at_path(schema, row, path)


_Bounds = list[tuple[Any, str, Thing, Any]]  # The bound, and the one on the other side.


@dataclass(slots=True)
class Filing(Generic[Thing]):
    """Things by name, filed by what they want of the rows of one schema.

    Invariant: each thing is filed once; a lookup by a row that satisfies its condition finds it
    """

    schema: Schema
    anything: dict[str, Thing] = field(default_factory=dict)  # Things that every row may concern.
    _equal: dict[tuple[str, ...], dict[ValueText, dict[str, Thing]]] = field(default_factory=dict)
    _above: dict[tuple[str, ...], _Bounds[Thing]] = field(default_factory=dict)  # Lower bounds, sorted.
    _below: dict[tuple[str, ...], _Bounds[Thing]] = field(default_factory=dict)  # Upper bounds, sorted.
    _getters: dict[tuple[str, ...], OnRow] = field(default_factory=dict)

    @property
    def tells_apart(self) -> bool:
        """Whether something wants only some of the rows."""
        return bool(self._equal or self._above or self._below)

    def add(self, name: str, wish: Comparison | None, thing: Thing) -> None:
        if wish is None:
            self.anything[name] = thing
            return
        if wish.path not in self._getters:
            self._getters[wish.path] = getter(self.schema, wish.path)
        if wish.sign == "=":
            self._equal.setdefault(wish.path, {}).setdefault(value_text(wish.value), {})[name] = thing
        else:
            insort(self._bounds(wish.sign).setdefault(wish.path, []), (wish.value, name, thing, wish.limit), key=_bound)

    def remove(self, name: str, wish: Comparison | None) -> None:
        if wish is None:
            del self.anything[name]
        elif wish.sign == "=":
            by_value = self._equal[wish.path]
            text = value_text(wish.value)
            del by_value[text][name]
            if not by_value[text]:
                del by_value[text]
            if not by_value:
                del self._equal[wish.path]
        else:
            bounds = self._bounds(wish.sign)
            first = bisect_left(bounds[wish.path], wish.value, key=_bound)
            place = next(at for at in range(first, len(bounds[wish.path])) if bounds[wish.path][at][1] == name)
            del bounds[wish.path][place]
            if not bounds[wish.path]:
                del bounds[wish.path]

    def _bounds(self, sign: str) -> dict[tuple[str, ...], _Bounds[Thing]]:
        return self._above if sign.startswith(">") else self._below

    def is_wanted(self, row: Row) -> bool:
        """Whether a row may concern anything."""
        return bool(self.anything) or bool(self.found(row))

    def found(self, row: Row) -> list[Thing]:
        """What a row may concern."""
        things = list(self.anything.values())
        for path, by_value in self._equal.items():
            things += by_value.get(value_text(self._getters[path](row)), {}).values()
        for path, bounds in self._above.items():
            if is_number(value := self._getters[path](row)):
                things += (thing for _, _, thing, _ in bounds[: bisect_right(bounds, value, key=_bound)])
        for path, bounds in self._below.items():
            if is_number(value := self._getters[path](row)):
                things += (thing for _, _, thing, _ in bounds[bisect_left(bounds, value, key=_bound) :])
        return things

    def found_in(self, rows: Sequence[Row]) -> Iterator[tuple[Thing, Sequence[Row]]]:
        """What a batch may concern, with those of its rows that may, in their order.

        Work grows with what is found: a column is looked at once for all that is filed under it.
        """
        yield from ((thing, rows) for thing in self.anything.values())
        for path, by_value in self._equal.items():
            for text, same in _by_text(rows, self._getters[path]).items():
                yield from ((thing, same) for thing in by_value.get(text, {}).values())
        for path in dict.fromkeys((*self._above, *self._below)):
            ranked = _Ranked.of(rows, self._getters[path])
            if ranked.values:
                above, below = self._above.get(path, ()), self._below.get(path, ())
                for least, _, thing, most in above[: bisect_right(above, ranked.values[-1], key=_bound)]:
                    if some := ranked.between(least, most):
                        yield thing, some
                for most, _, thing, least in below[bisect_left(below, ranked.values[0], key=_bound) :]:
                    if some := ranked.between(least, most):
                        yield thing, some


def _by_text(rows: Sequence[Row], value: OnRow) -> dict[ValueText, list[Row]]:
    """The rows of each value."""
    same: dict[Any, list[Row]] = {}
    for row in rows:
        same.setdefault(value(row), []).append(row)
    found: dict[ValueText, list[Row]] = {}
    for each, those in same.items():
        found.setdefault(value_text(each), []).extend(those)
    return found


class _Ranked(NamedTuple):
    """Rows by a numeric column; those without a number are left out."""

    values: list[Any]
    places: list[int]
    rows: Sequence[Row]

    @classmethod
    def of(cls, rows: Sequence[Row], value: OnRow) -> _Ranked:
        pairs = sorted((each, place) for place, each in enumerate(map(value, rows)) if is_number(each))
        return cls([each for each, _ in pairs], [place for _, place in pairs], rows)

    def between(self, least: Any, most: Any) -> list[Row]:
        """The rows with values from the least to the most, both included; None: no bound."""
        first = 0 if least is None else bisect_left(self.values, least)
        end = len(self.values) if most is None else bisect_right(self.values, most)
        return [self.rows[place] for place in sorted(self.places[first:end])]


def is_number(value: Any) -> bool:
    """NaN is no number here: it is neither above nor below anything."""
    return isinstance(value, _NUMBERS) and not isinstance(value, bool) and value == value
