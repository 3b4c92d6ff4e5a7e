"""What the catalogue knows of the two sides of a join: their rates and their frequent values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from protocols.catalogue.statistics import FREQUENT_KEPT, StreamStatistics
from protocols.filing import Comparison, getter
from protocols.join_index.condition import CompiledJoin
from protocols.join_index.keys import NULL, joined_text, value_text
from protocols.join_index.messages import SIDES, Side, ValueText
from protocols.join_index.selections import comparison_of
from queries.compile import OnRow
from queries.expressions import columns_of
from queries.schema import Row, Schema

BOUND_SHARE: Final = 1 / 3  # Assumed share of tuples that a bound lets through.
EQUAL_SHARE: Final = 1 / 10  # Assumed share of tuples that an equality lets through, without statistics.
_PLAIN: Final = {"int": int, "float": float, "string": str, "bool": bool}  # Types that JSON has, too.

_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SideKnown:
    """One side. Shares are of its tuples; rare values are left out."""

    rate_per_s: float = 0.0
    own: Mapping[ValueText, float] = field(default_factory=dict)  # By value of the attribute that finds its tuples.
    asked: Mapping[ValueText, float] = field(default_factory=dict)  # By the value that its triggers look for.
    wanted: float = 1.0  # The share that a rewriter sends as triggers: comparisons with constants leave out the rest.

    @property
    def triggers_per_s(self) -> float:
        return self.rate_per_s * self.wanted

    @classmethod
    def of(cls, join: CompiledJoin, side: Side, publishers: Iterable[StreamStatistics]) -> SideKnown:
        """From the statistics that the publishers of its stream have advertised."""
        publishers = list(publishers)
        rate = sum(each.rate_per_s for each in publishers)
        if not rate:
            return cls()
        condition = join.side(side)
        schema = condition.source.schema

        def shares(parts: Sequence[tuple[_Path, OnRow]]) -> dict[ValueText, float]:
            found: dict[ValueText, float] = {}
            for each in publishers:
                for text, share in _frequent_together(schema, parts, each).items():
                    found[text] = found.get(text, 0.0) + share * each.rate_per_s / rate
            return found

        read = [list(dict.fromkeys(column.path for column in columns_of(each))) for each in condition.expressions]
        searched = [(paths[0], value) for paths, value in zip(read, join.values[side], strict=True) if len(paths) == 1]
        asked = shares(searched) if len(searched) == len(read) else {}
        own = shares([(path, getter(schema, path)) for path in condition.attribute.paths])
        wish = comparison_of(join.condition, side)
        wanted = sum(_passing(wish, each) * each.rate_per_s / rate for each in publishers) if wish is not None else 1.0
        return cls(rate, own, asked, wanted)


def _frequent_together(
    schema: Schema, parts: Sequence[tuple[_Path, OnRow]], statistics: StreamStatistics
) -> dict[ValueText, float]:
    """The share of each frequent combination of values, as if fields did not depend on each other."""
    found: dict[tuple[ValueText, ...], float] = {(): 1.0}
    for path, value in parts:
        more: dict[tuple[ValueText, ...], float] = {}
        for row, share in _frequent(schema, path, statistics):
            text = value_text(value(row))
            for texts, before in found.items() if text != NULL else ():
                more[*texts, text] = more.get((*texts, text), 0.0) + before * share
        found = dict(sorted(more.items(), key=lambda each: -each[1])[:FREQUENT_KEPT])
    return {joined_text(texts): share for texts, share in found.items()}


def _frequent(schema: Schema, path: _Path, statistics: StreamStatistics) -> Iterator[tuple[Row, float]]:
    """For each frequent value of a field, a row in which all other fields are null, and the value's share."""
    place = next((place for place, each in enumerate(schema.fields) if (each.name,) == path), None)
    if place is None or schema.fields[place].type not in _PLAIN:
        return
    nothing: list[Any] = [None] * (len(schema.fields) + 1)  # With TIME.
    for text, share in (each for known in statistics.fields if (known.name,) == path for each in known.frequent):
        try:
            value: Any = msgspec.json.decode(text, type=_PLAIN[schema.fields[place].type])
        except msgspec.DecodeError:  # Null, or cut off since it is long.
            continue
        yield (*nothing[:place], value, *nothing[place + 1 :]), share


def _passing(wish: Comparison, statistics: StreamStatistics) -> float:
    """The share of a publisher's tuples that a comparison lets through."""
    if wish.sign != "=":
        return BOUND_SHARE
    known = next((each for each in statistics.fields if (each.name,) == wish.path), None)
    if known is None:
        return EQUAL_SHARE
    frequent = dict(known.frequent)
    if isinstance(wish.value, (bool, int, float, str)) and (share := frequent.get(_json(wish.value))) is not None:
        return share
    return max(0.0, 1.0 - sum(frequent.values())) / max(known.distinct - len(frequent), 1.0)


def _json(value: Any) -> str:
    return msgspec.json.encode(value)[:64].decode(errors="replace")


def both(join: CompiledJoin, streams: Mapping[Side, Iterable[StreamStatistics]]) -> tuple[SideKnown, SideKnown]:
    """Both sides of a join. A stream without statistics has rate 0."""
    left, right = (SideKnown.of(join, side, streams.get(side, ())) for side in SIDES)
    return left, right
