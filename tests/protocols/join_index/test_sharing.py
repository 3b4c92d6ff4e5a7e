"""A hundred joins over five pairs of streams: few of them run, and each query has its own results."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from typing import Final

from queries.catalogue import Stream
from queries.schema import Row, Schema
from tests.protocols.join_index.network import Network

SCHEMA: Final = Schema.parse("k int, x float, a int")
STREAMS: Final = {name: Stream(name, SCHEMA) for name in "stuvw"}
PAIRS: Final = ("st", "tu", "su", "sv", "wt")
JOINS_MAX: Final = 20  # That run for a hundred queries.
ROWS: Final = 6  # Of each stream.
STEP_MS: Final = 100


class Asked:
    """One query, and what it must tell of rows that were published one after the other, with their times."""

    def __init__(self, luck: random.Random) -> None:
        self.streams = luck.choice(PAIRS)[:: luck.choice((1, -1))]
        self.windows_s = [luck.choice((1, 2, 5)) for _ in range(2)]
        self.shares = [luck.choice((1.0, 1.0, 0.5, 0.2)) for _ in range(2)]

    @property
    def text(self) -> str:
        tests = "".join(f" AND {alias}.x <= {share}" for alias, share in zip("lr", self.shares, strict=True))
        left, right = (
            f"{stream} [RANGE {window} SECONDS] AS {alias}"
            for stream, window, alias in zip(self.streams, self.windows_s, "lr", strict=True)
        )
        return f"SELECT l.a, r.a AS other FROM {left}, {right} WHERE l.k = r.k{tests}"

    def due(self, published: dict[str, list[tuple[int, Row]]]) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for (at, left), (other_at, right) in product(*(published[stream] for stream in self.streams)):
            window_s = self.windows_s[0 if at <= other_at else 1]  # That of the earlier one.
            if left[0] == right[0] and left[1] <= self.shares[0] and right[1] <= self.shares[1]:
                found[left[2], right[2]] += abs(at - other_at) <= window_s * 1000
        return +found


def test_a_hundred_joins_over_five_pairs_of_streams_run_as_twenty_at_most():
    luck = random.Random(7)
    network, published = Network(STREAMS, peers=4), dict[str, list[tuple[int, Row]]]((name, []) for name in STREAMS)
    asked = {}
    for _ in range(100):
        each = Asked(luck)
        asked[network.pose(each.text, "sai", luck.choice(network.ids))] = each
    for number in range(ROWS):
        for place, stream in enumerate(STREAMS):
            row = (luck.randrange(2), luck.choice((0.1, 0.4, 0.9)), 10 * number + place)
            published[stream].append((network.now, row))
            network.publish(stream, row, luck.choice(network.ids))
    tables = [machine.evaluator.tables for machine in network.machines.values()]
    groups = {member.group for each in tables for member in each.queries.values()}
    print(f"{len(asked)} joins run as {len(groups)}, {sum(each.stored for each in tables)} tuples stored")
    assert 5 <= len(groups) <= JOINS_MAX
    told = {name: Counter(row for query, row in network.results if query == name) for name in asked}
    due = {name: each.due(published) for name, each in asked.items()}
    assert sum(map(Counter.total, due.values())) > 500
    assert told == due
