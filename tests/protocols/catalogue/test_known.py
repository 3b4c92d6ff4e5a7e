"""What planners know of a stream, from what its publishers advertise."""

from __future__ import annotations

from protocols.catalogue.known import busiest, known_of
from protocols.catalogue.messages import PublisherShown, StreamShown
from protocols.catalogue.statistics import FieldStatistics, StreamStatistics
from protocols.catalogue.streams import StreamDefinition
from protocols.ids import PeerId
from queries.schema import Schema

NORTH, SOUTH = (PeerId(letter * 20) for letter in (b"n", b"s"))
DEFINITION = StreamDefinition(name="trades", schema=Schema.parse("k string, price float"), retention_ms=60_000)


def publisher(peer: PeerId, accepted: int, statistics: StreamStatistics | None) -> PublisherShown:
    counts = dict.fromkeys(("processed", "pending", "dead_lettered", "expired"), 0)
    return PublisherShown(peer=peer, epoch=1, backup=None, accepted=accepted, statistics=statistics, **counts)


def told(rate: float, size: float, distinct: float, share: float) -> StreamStatistics:
    field = FieldStatistics(name="k", distinct=distinct, frequent=(('"a"', share),))
    return StreamStatistics(rate_per_s=rate, row_bytes=size, fields=(field,))


def test_publishers_count_by_their_rates():
    publishers = (publisher(NORTH, 1, told(30, 10, 5, 0.5)), publisher(SOUTH, 9, told(10, 30, 8, 0.1)))
    known = known_of(StreamShown(definition=DEFINITION, publishers=publishers, subscriptions=0))
    assert (known.rate_per_s, known.row_bytes, known.retention_s) == (40, 15, 60)
    assert known.columns[("k",)].distinct == 8
    assert known.columns[("k",)].frequent == (('"a"', 0.5 * 0.75 + 0.1 * 0.25),)
    assert known.columns[("price",)].distinct is None
    assert busiest(publishers) == SOUTH


def test_a_stream_that_nobody_publishes_to_brings_nothing():
    known = known_of(StreamShown(definition=DEFINITION, publishers=(publisher(NORTH, 0, None),), subscriptions=0))
    assert (known.rate_per_s, known.row_bytes) == (0, 100)
    assert busiest(()) is None
