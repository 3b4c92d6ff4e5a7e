"""What the tuples of a stream look like in numbers: rate, size, each field's distinct and frequent values, quantiles.

The publishing peer keeps them in bounded memory, from a sample of each batch. Planners read them.
"""

from __future__ import annotations

import hashlib
import math
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import Any, Final

import msgspec

from protocols.ids import Measured, Millis
from queries.schema import Field
from queries.selectivity import is_ascending

HALF_LIFE_MS: Final = 10_000
SAMPLE_MAX: Final = 16  # Rows sampled from one batch.
SMALLEST_KEPT: Final = 256  # Relative error of the distinct count about 1 / sqrt(254), 6 %.
FREQUENT_KEPT: Final = 32
FREQUENT_TOLD: Final = 5
FADE_AT: Final = 4096  # After so many values all counts are halved, so that values which were frequent long ago fade.
LUCK: Final = 2.0  # Standard deviations above chance that make a value count as frequent.
SHARE_MOVED: Final = 0.05  # A frequent value is news if its share has changed by so much,
TIMES_MOVED: Final = 2.0  # and a rate or a distinct count if it has changed by this factor.
FIELDS_TOLD: Final = 64  # Bounds the size of an advertisement,
NUMBERS_TOLD: Final = 32  # as does this: quantiles of so many numeric fields, those inside records included.
NUMBERS_KEPT: Final = 512  # A quantile is off by 2 % of the rows or so, the deviation of half of them.
QUANTILES: Final = 16
_HASH_BITS: Final = 64


class FieldStatistics(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One field, as advertised."""

    name: str
    distinct: Measured
    frequent: tuple[tuple[str, Measured], ...]  # Values as text, with their share of the tuples, most frequent first.


class NumberStatistics(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How the numbers of one field are spread, as advertised. The field may be inside records."""

    path: tuple[str, ...]
    quantiles: tuple[float, ...]  # The ends of `QUANTILES` shares of equal size, the least and the greatest included.
    nulls: float = 0.0  # The share of tuples without a number.

    @property
    def is_sensible(self) -> bool:
        """Whether it can be true; another peer says it."""
        return 2 <= len(self.quantiles) <= QUANTILES + 1 and is_ascending(self.quantiles) and 0 <= self.nulls < 1


class StreamStatistics(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One stream at one publishing peer, as advertised."""

    rate_per_s: Measured
    row_bytes: Measured
    fields: tuple[FieldStatistics, ...]
    numbers: tuple[NumberStatistics, ...] = ()  # Peers before 0.3 neither tell nor read them.


@dataclass(slots=True)
class Rate:
    """Tuples per second, exponentially faded: what happened one half-life ago counts half."""

    _weight: float = 0.0  # Tuples counted, faded to `_at`.
    _at: Millis = 0
    _since: Millis | None = None

    def count(self, tuples: int, now: Millis) -> None:
        self._since = now if self._since is None else self._since
        self._weight = self._faded(now) + tuples
        self._at = max(self._at, now)

    def per_second(self, now: Millis) -> float:
        """The faded count over the faded time. It is right from the first second on, not only after some half-lives."""
        if self._since is None:
            return 0.0
        age = max(now - self._since, 1)
        faded_ms = HALF_LIFE_MS / math.log(2) * (1 - math.exp2(-age / HALF_LIFE_MS))
        return 1000 * self._faded(now) / faded_ms

    def _faded(self, now: Millis) -> float:
        return self._weight * math.exp2(-max(now - self._at, 0) / HALF_LIFE_MS)


@dataclass(slots=True)
class DistinctCount:
    """How many different values there are, from the smallest hashes seen (KMV; Bar-Yossef et al., 2002)."""

    _smallest: list[int] = field(default_factory=list)  # Sorted.

    def add(self, hashed: int) -> None:
        kept = self._smallest
        if (len(kept) == SMALLEST_KEPT and hashed >= kept[-1]) or hashed in kept:
            return
        insort(kept, hashed)
        del kept[SMALLEST_KEPT:]

    def estimate(self) -> float:
        if len(self._smallest) < SMALLEST_KEPT:
            return float(len(self._smallest))
        return (SMALLEST_KEPT - 1) * 2.0**_HASH_BITS / self._smallest[-1]


@dataclass(slots=True)
class FrequentValues:
    """The most frequent values and about how often they occur lately (Space-Saving; Metwally et al., 2005).

    A count is never too low, and too high by at most the number of values seen divided by `FREQUENT_KEPT`. Values older
    than the last `FADE_AT` count less and less.
    """

    total: int = 0
    _counts: dict[str, tuple[int, int]] = field(default_factory=dict)  # The count, and its largest possible error.

    def add(self, value: str) -> None:
        if self.total == FADE_AT:
            self._fade()
        self.total += 1
        count, error = self._counts.get(value, (0, 0))
        if not count and len(self._counts) == FREQUENT_KEPT:
            least = min(self._counts, key=lambda each: (self._counts[each][0], each))
            count = error = self._counts.pop(least)[0]
        self._counts[value] = (count + 1, error)

    def _fade(self) -> None:
        self.total //= 2
        halves = ((value, count // 2, error - error // 2) for value, (count, error) in self._counts.items())
        self._counts = {value: (count, error) for value, count, error in halves if count}

    def shares(self) -> tuple[tuple[str, float], ...]:
        """The values that are more frequent than chance explains, each with a lower bound of its share."""
        certain = [(value, count - error) for value, (count, error) in self._counts.items()]
        frequent = [
            (value, least)
            for value, least in certain
            # Among few values, each has a large share by chance.
            if (least - LUCK * math.sqrt(least)) * FREQUENT_KEPT > self.total
        ]
        frequent.sort(key=lambda each: (-each[1], each[0]))
        return tuple((value, round(least / self.total, 4)) for value, least in frequent[:FREQUENT_TOLD])


@dataclass(slots=True)
class Numbers:
    """The latest numbers of one field, from which its quantiles are told. NaN and infinities count as no number."""

    path: tuple[str, ...]
    places: tuple[int, ...]  # The way to it in a row.
    _latest: deque[float | None] = field(default_factory=lambda: deque(maxlen=NUMBERS_KEPT))

    def add(self, row: tuple[Any, ...]) -> None:
        value: Any = row
        for place in self.places:
            if value is None:
                break
            value = value[place]
        number = float(value) if isinstance(value, int | float | Decimal) else None
        self._latest.append(number if number is not None and math.isfinite(number) else None)

    def summary(self) -> NumberStatistics | None:
        ordered = sorted(each for each in self._latest if each is not None)
        if not ordered:
            return None
        last = len(ordered) - 1
        ends = tuple(ordered[last * number // QUANTILES] for number in range(QUANTILES + 1))
        nulls = 1 - len(ordered) / len(self._latest)
        return NumberStatistics(path=self.path, quantiles=ends, nulls=nulls)


def numeric_fields(
    fields: Iterable[Field], above: tuple[str, ...] = (), places: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """The path of each numeric field, also of those inside records, and its places in a row."""
    for place, each in enumerate(fields):
        path, way = (*above, each.name), (*places, place)
        if each.type in ("int", "float", "decimal"):
            yield path, way
        elif each.type == "record":
            yield from numeric_fields(each.fields, path, way)


@dataclass(slots=True)
class StatisticsSketch:
    """The running statistics of one stream.

    >>> from queries.schema import Schema
    >>> sketch = StatisticsSketch.of(Schema.parse("airline string, delay int").fields)
    >>> sketch.add([("OS", delay) for delay in range(10)], count=10, size=50, now=1000)
    >>> statistics = sketch.summary(now=1000)
    >>> statistics.row_bytes, statistics.fields[0]
    (5.0, FieldStatistics(name='airline', distinct=1.0, frequent=(('"OS"', 1.0),)))
    >>> statistics.numbers[0].path, statistics.numbers[0].quantiles[::4]
    (('delay',), (0.0, 2.0, 4.0, 6.0, 9.0))
    """

    names: tuple[str, ...]
    numbers: tuple[Numbers, ...] = ()
    _rate: Rate = field(default_factory=Rate)
    _tuples: int = 0
    _bytes: int = 0
    _looks: int = 0
    _distinct: list[DistinctCount] = field(default_factory=list)
    _frequent: list[FrequentValues] = field(default_factory=list)

    @classmethod
    def of(cls, fields: Sequence[Field]) -> StatisticsSketch:
        numbers = (Numbers(path, places) for path, places in islice(numeric_fields(fields), NUMBERS_TOLD))
        return cls(tuple(each.name for each in fields), tuple(numbers))

    def __post_init__(self) -> None:
        self._distinct = [DistinctCount() for _ in self.names]
        self._frequent = [FrequentValues() for _ in self.names]

    def add(self, rows: Sequence[tuple[Any, ...]], count: int, size: int, now: Millis) -> None:
        """Take note of a batch: how many tuples and bytes it has, and some of its rows, decoded.

        The caller may hand over as few rows as it likes. Of many rows every n-th is sampled, and the first one changes
        from batch to batch, because the rows of a batch may be sorted.
        """
        self._rate.count(count, now)
        self._tuples += count
        self._bytes += size
        step = max(-(-len(rows) // SAMPLE_MAX), 1)
        first = self._looks % step
        self._looks += bool(rows)
        for row in rows[first::step]:
            for value, distinct, frequent in zip(row, self._distinct, self._frequent, strict=True):
                text = msgspec.json.encode(value)
                hashed = hashlib.blake2b(text, digest_size=_HASH_BITS // 8).digest()
                distinct.add(int.from_bytes(hashed, "big"))
                frequent.add(text[:64].decode(errors="replace"))
            for number in self.numbers:
                number.add(row)

    def summary(self, now: Millis) -> StreamStatistics:
        """What to advertise now."""
        each_field = zip(self.names[:FIELDS_TOLD], self._distinct, self._frequent, strict=False)
        fields = tuple(
            FieldStatistics(name=name, distinct=round(distinct.estimate(), 1), frequent=frequent.shares())
            for name, distinct, frequent in each_field
        )
        row_bytes = self._bytes / self._tuples if self._tuples else 0.0
        return StreamStatistics(
            rate_per_s=round(self._rate.per_second(now), 1),
            row_bytes=round(row_bytes, 1),
            fields=fields,
            numbers=tuple(told for each in self.numbers if (told := each.summary()) is not None),
        )


def has_moved(before: StreamStatistics | None, after: StreamStatistics) -> bool:
    """Whether planners should hear of the change: in the rate, in a distinct count, or in which values are frequent."""
    if before is None or _are_apart(before.rate_per_s, after.rate_per_s):
        return True
    if [each.name for each in before.fields] != [each.name for each in after.fields]:
        return True
    for one, other in zip(before.fields, after.fields, strict=True):
        old, new = dict(one.frequent), dict(other.frequent)
        if _are_apart(one.distinct, other.distinct):
            return True
        if any(abs(old.get(value, 0.0) - new.get(value, 0.0)) > SHARE_MOVED for value in old | new):
            return True
    return False


def _are_apart(one: float, other: float) -> bool:
    return max(one, other) > max(TIMES_MOVED * min(one, other), 1.0)
