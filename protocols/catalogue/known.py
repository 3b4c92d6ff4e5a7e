"""What planners know of a stream: what its publishers advertise of it, put together."""

from __future__ import annotations

from collections.abc import Sequence

from protocols.catalogue.messages import PublisherShown, StreamShown
from protocols.catalogue.statistics import FieldStatistics, StreamStatistics
from protocols.ids import PeerId
from queries import cost
from queries.selectivity import ColumnStatistics


def busiest(publishers: Sequence[PublisherShown]) -> PeerId | None:
    """Where a stream is published most."""
    return max(publishers, key=lambda each: (each.accepted, each.peer)).peer if publishers else None


def known_of(shown: StreamShown) -> cost.StreamStatistics:
    """Rates add up; sizes, shares and counts of values are those of the publishers, each weighed by its rate."""
    told = [each.statistics for each in shown.publishers if each.statistics is not None and each.statistics.row_bytes]
    retention_s = shown.definition.retention_ms / 1000
    if not told:
        guess = cost.UNKNOWN
        return cost.StreamStatistics(rate_per_s=0.0, row_bytes=guess.row_bytes, retention_s=retention_s)
    rate = sum(each.rate_per_s for each in told)
    weights = [each.rate_per_s / rate if rate else 1 / len(told) for each in told]
    return cost.StreamStatistics(
        rate_per_s=rate,
        row_bytes=sum(weight * each.row_bytes for weight, each in zip(weights, told, strict=True)),
        columns={
            (field.name,): _column(field.name, told, weights)
            for field in shown.definition.schema.fields
            if not field.fields
        },
        retention_s=retention_s,
    )


def _column(name: str, told: list[StreamStatistics], weights: list[float]) -> ColumnStatistics:
    shares: dict[str, float] = {}
    distinct: float | None = None
    for weight, statistics in zip(weights, told, strict=True):
        for field in _named(statistics, name):
            distinct = max(distinct or 0.0, field.distinct)
            for value, share in field.frequent:
                shares[value] = shares.get(value, 0.0) + weight * share
    return ColumnStatistics(distinct=distinct, frequent=tuple(shares.items()))


def _named(statistics: StreamStatistics, name: str) -> list[FieldStatistics]:
    return [each for each in statistics.fields if each.name == name]
