"""Windows over values: which rows come after a higher value has closed all windows that they belong to.

A stream is ordered by such a value, so the highest one so far says how far it is complete, as the watermark does for
windows of time. Spark would leave these rows out, and nobody would hear how many they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from queries.plan import Join, Nest, Operator, WindowAggregate, walk
from queries.schema import Row

Steps = Mapping[str, Callable[[Sequence[Row]], Sequence[Row]]]


def windowed_by_value(plan: Operator) -> WindowAggregate | None:
    """The aggregate of a plan that windows single rows by a value; rows of joins and aggregates are made in Spark."""
    for each in walk(plan):
        if isinstance(each, WindowAggregate) and each.window.kind == "value":
            is_made = any(isinstance(below, Join | Nest | WindowAggregate) for below in walk(each.input))
            return None if is_made else each
    return None


class LateValues:
    """The highest value so far of one attempt, and the windows that it has closed."""

    def __init__(self, plan: WindowAggregate, steps: Steps) -> None:
        window, columns = plan.window, plan.input.columns
        self._steps = steps  # From the rows of a source to those of the windows.
        self._size, self._slide = Fraction(window.size), Fraction(window.slide or window.size)
        at = next(place for place, column in enumerate(columns) if column.path == window.by[:1])
        self._path, fields = [at], columns[at].fields
        for name in window.by[1:]:
            at = next(place for place, field in enumerate(fields) if field.name == name)
            self._path.append(at)
            fields = fields[at].fields
        self._highest: Any = None

    def in_time(self, alias: str, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows of a source without those that are too late, in the order in which they came."""
        step = self._steps[alias]
        return [row for row in rows if not any(self._is_late(each) for each in step((row,)))]

    def _is_late(self, row: Row) -> bool:
        value: Any = row
        for place in self._path:
            value = value[place] if value is not None else None
        if value is None or not math.isfinite(value):
            return False  # It is in no window.
        if self._highest is None or value >= self._highest:
            self._highest = value
            return False
        last_end = (Fraction(value) + self._size) // self._slide * self._slide
        return bool(value < last_end <= self._highest)
