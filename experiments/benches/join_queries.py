"""What a tuple costs while more and more joins of the same two streams are installed.

    python -m experiments.benches.join_queries

The attribute and value levels of five peers in one process, without a network, and without proxies: five daemons cannot
be asked a hundred thousand queries in the time of a benchmark. Each query wants the orders of one customer, or orders
above a bound (shown as >), joined with their payments. One, ten or a hundred queries want the same customer, and so
many does an order concern. Orders come from five hundred customers at most: of many queries most sleep. Processor time,
the encoding of messages included, once those that do not sleep have been made ready at all evaluators.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from experiments.benches.figures import GOAL_MISSED, note
from protocols.delivery.messages import Batch, Opened, Origin, Rows
from protocols.effects import Effect, Send, Tell
from protocols.events import Requested
from protocols.ids import Millis, PeerId, RequestId
from protocols.inside import Inside
from protocols.join_index.evaluator import Evaluator
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import LEFT, RIGHT, IndexQuery, JoinQuery, JoinResults, Notified, Parcel, Receipt
from protocols.join_index.rewriter import Rewriter
from protocols.messages import Message
from protocols.wire import MESSAGES
from queries import sql
from queries.catalogue import DAY_MS, Stream
from queries.plan import Operator
from queries.schema import Row, Schema

PEERS: Final = tuple(sorted(PeerId.of_public_key(bytes([number])) for number in range(5)))
SUBSCRIBER: Final = PEERS[2]
STREAMS: Final = {
    "orders": Stream("orders", Schema.parse("id int, customer int, amount float")),
    "payments": Stream("payments", Schema.parse("order_id int, paid float")),
}
INSTALLED: Final = (1, 1000, 100_000)
MATCHING: Final = (1, 10, 100)
BATCH_ROWS: Final = 100
CUSTOMERS_MAX: Final = 500
WARM_BATCHES: Final = 60
BATCHES: Final = 100  # Of each stream.
GOAL_GROWTH: Final = 1.5  # Of the cost of a tuple, from a thousand queries to the most, where it concerns one of them.
JOIN: Final = "SELECT o.id, p.paid FROM orders o, payments p WHERE o.id = p.order_id AND "
BY_CUSTOMER: Final = "o.customer = 4000000000"
BY_AMOUNT: Final = "o.amount > 4000000000"
_BLANK: Final = msgspec.msgpack.encode(4_000_000_000)


class Cost(NamedTuple):
    """Of one setting."""

    us_per_tuple: float
    results: int
    install_us: float


class Index:
    """The two rewriters and five evaluators of some queries."""

    def __init__(self, plans: Iterable[Operator], streams: Mapping[str, Stream] = STREAMS) -> None:
        self._streams = streams
        limits = JoinLimits(away_ms=DAY_MS, queries_max=1_000_000)
        self._rewriters = [Rewriter(peer, limits, Inside()) for peer in PEERS[:2]]
        self.evaluators = {peer: Evaluator(peer, limits) for peer in PEERS}
        self._requests: list[RequestId] = []
        self._now: Millis = 1000
        self.results = 0
        for rewriter in self._rewriters:
            rewriter.begin(self._now)
        for evaluator in self.evaluators.values():
            evaluator.begin(self._now)
        for number, plan in enumerate(plans):
            self._install(JoinQuery(f"q{number}~1", SUBSCRIBER, 0, "sai", plan, DAY_MS, life=1))

    def _install(self, query: JoinQuery) -> None:
        for side, rewriter in zip((LEFT, RIGHT), self._rewriters, strict=True):
            asked = IndexQuery(query=query, side=side, replica=0, rewrites=side == LEFT, evaluators=PEERS)
            for effect in rewriter.index(SUBSCRIBER, asked, self._now):
                if isinstance(effect, Tell) and isinstance(effect.event, Requested):
                    self._requests.append(effect.event.request)
                    rewriter.answered(effect.event.request, Opened(subscription="", stamp=0), self._now)

    def publish(self, side: int, stream: str, first: int, rows: list[Row]) -> None:
        self._now += 1
        origin = Origin(PEERS[side], stream, 1)
        batch = Batch(origin, first, len(rows), self._now << 16, self._streams[stream].schema.encode(rows))
        rewriter = self._rewriters[side]
        self._carry(side, rewriter.answered(self._requests[side], Rows(batches=(batch,)), self._now))

    def _carry(self, side: int, effects: Iterable[Effect]) -> None:
        rewriter = self._rewriters[side]
        for effect in effects:
            if not isinstance(effect, Send) or not isinstance(effect.message, Parcel):
                continue
            evaluator = self.evaluators[effect.peer]
            parcel = _sent(effect.message)
            assert isinstance(parcel, Parcel)
            parcel = msgspec.structs.replace(parcel, queries=effect.message.queries)  # Five peers share one memory.
            for told in _unpacked(evaluator, PEERS[side], parcel, self._now):
                assert isinstance(told, Send)
                message = _sent(told.message)
                if isinstance(message, Receipt):
                    self._carry(side, rewriter.receipt(effect.peer, message, self._now))
                elif isinstance(message, JoinResults):
                    self.results += sum(len(each.made_of) // 4 for each in message.results)
                    notified = Notified(subscriber_life=message.subscriber_life, sequence=message.sequence)
                    evaluator.notified(SUBSCRIBER, notified)


def _unpacked(evaluator: Evaluator, sender: PeerId, parcel: Parcel, now: Millis) -> Iterator[Effect]:
    """What an evaluator makes of a parcel, in as many events as it takes."""
    yield from evaluator.unpack(sender, parcel, now)
    while evaluator.has_work:
        yield from evaluator.go_on(now)


def _sent(message: Message) -> Message:
    """As it comes out at the other end."""
    return MESSAGES.decode(MESSAGES.encode(message))


def plans_of(condition: str, numbers: Iterable[int]) -> Iterator[Operator]:
    """Plans that differ in one constant: parsed once."""
    raw = msgspec.msgpack.encode(sql.plan(JOIN + condition, STREAMS).plan)
    assert raw.count(_BLANK) == 1
    for number in numbers:
        yield msgspec.msgpack.decode(raw.replace(_BLANK, b"\xce" + number.to_bytes(4, "big")), type=Operator)


def measure(installed: int, matching: int, condition: str) -> Cost:
    """Queries, of which an order concerns so many."""
    is_bound = condition == BY_AMOUNT
    customers = min(CUSTOMERS_MAX, installed // matching)
    numbers = range(installed) if is_bound else (number // matching for number in range(installed))
    began = time.process_time()
    index = Index(plans_of(condition, numbers))
    install_us = (time.process_time() - began) / installed * 1e6
    gc.collect()
    gc.freeze()  # As a daemon does: what is there for good is not walked through again and again.
    ids = iter(range(sys.maxsize))
    for batches in (WARM_BATCHES, BATCHES):
        index.results = 0
        began = time.process_time()
        for _ in range(batches):
            some = list(islice(ids, BATCH_ROWS))
            amount = matching - 0.5 if is_bound else 1.0
            index.publish(LEFT, "orders", some[0], [(each, each % customers, amount) for each in some])
            index.publish(RIGHT, "payments", some[0], [(each, 1.0) for each in some])
        took_s = time.process_time() - began
    assert index.results == BATCHES * BATCH_ROWS * matching, index.results
    return Cost(took_s / (2 * BATCHES * BATCH_ROWS) * 1e6, index.results, install_us)


def main() -> int:
    gc.set_threshold(20_000, 20, 100)  # As a daemon does. With Python's own, the collector doubles some of these times.
    print(f"two streams, joined by SAI at two rewriters and {len(PEERS)} evaluators; batches of {BATCH_ROWS}")
    print(f"{'queries':>8} {'that an order concerns':>23} {'µs a tuple':>11} {'µs a result':>12} {'µs to install':>14}")
    costs: dict[int, float] = {}
    for installed in INSTALLED:
        for matching in (each for each in MATCHING if each <= installed):
            cost = measure(installed, matching, BY_CUSTOMER)
            _show(f"{installed:,}", matching, cost)
            if matching == 1:
                costs[installed] = cost.us_per_tuple
    for matching in MATCHING:
        _show(f"{INSTALLED[1]:,} >", matching, measure(INSTALLED[1], matching, BY_AMOUNT))
    _, some, most = INSTALLED
    growth = costs[most] / costs[some]
    print(f"{most:,} queries instead of {some:,} make a tuple that concerns one {growth:.2f} times as dear")
    note(f"tuple, {most:,} joins", costs[most], "µs", f"{some:,} joins", costs[some])
    return 0 if growth <= GOAL_GROWTH else GOAL_MISSED


def _show(installed: str, matching: int, cost: Cost) -> None:
    tuples = 2 * BATCHES * BATCH_ROWS
    each = cost.us_per_tuple * tuples / cost.results
    print(
        f"{installed:>8} {matching:>23} {cost.us_per_tuple:>11.1f} {each:>12.1f} {cost.install_us:>14.0f}", flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
