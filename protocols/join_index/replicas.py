"""Rewriter replication, section 7: how many rewriters share the tuples of an attribute.

Each of them reads a share of the stream's publishers. So more rewriters than publishers would have nothing to read, and
a stream that one peer reads with ease needs one rewriter.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from protocols.catalogue.statistics import StreamStatistics
from queries.query import REPLICAS_MAX

READ_PER_S: Final = 20_000.0  # Tuples a second that one rewriter reads with ease.
PUBLISHERS_EACH: Final = 4  # Fewest publishers for each: they are shared out by id, so with few the rates are uneven.


def replicas_for(asked: int, publishers: Collection[StreamStatistics], peers: int) -> int:
    """DR for one side of a join: as asked for, or by the rates of its publishers.

    >>> def publishers(count: int, rate_per_s: float) -> list[StreamStatistics]:
    ...     return [StreamStatistics(rate_per_s=rate_per_s, row_bytes=9.0, fields=())] * count
    >>> replicas_for(3, [], peers=1), replicas_for(0, [], peers=50)
    (3, 1)
    >>> [replicas_for(0, publishers(*each), peers=50) for each in ((40, 400.0), (40, 1500.0), (6, 10_000.0))]
    [1, 3, 1]
    """
    if asked:
        return min(asked, REPLICAS_MAX)
    needed = int(sum(each.rate_per_s for each in publishers) / READ_PER_S)
    return max(1, min(needed, len(publishers) // PUBLISHERS_EACH, peers, REPLICAS_MAX))
