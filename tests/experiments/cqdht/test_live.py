"""The column "live" in small: whole peers take the paper's workload, and every result comes exactly once."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from experiments.cqdht import live
from experiments.cqdht.workload import Size
from protocols.clock import wall_ms
from protocols.delivery.messages import OpenSubscription, Position, Rows, Seen
from protocols.messages import Answer
from queries.expressions import EPOCH
from queries.plan import output_schema
from queries.reference import Tuple, evaluate
from queries.schema import Row

pytestmark = pytest.mark.slow
SIZE = Size(peers=12, queries=10, relations=2)
TUPLES = 120
FEW_VALUES = 1.6  # Zipf: so few values are frequent that they meet often.


@pytest.fixture(scope="module")
def run() -> live.LiveRun:
    run = live.LiveRun(SIZE, seed=1, bos=1, zipf=FEW_VALUES)
    run.pose()
    return run


@pytest.fixture(scope="module")
def costs(run: live.LiveRun) -> dict[str, float]:
    return run.measure(TUPLES)


def _read(run: live.LiveRun, query: live.Posed) -> Counter[Row]:
    """What a client reads of the query's stream, from its start."""
    assert query.accepted is not None
    schema, rows = output_schema(query.plan), Counter[Row]()

    def heard(answer: Answer | None, last: bool) -> None:
        if isinstance(answer, Rows):
            rows.update(row for batch in answer.batches for row in schema.decode(batch.rows))
            positions = tuple(Position(batch.origin, batch.next) for batch in answer.batches)
            query.peer.tell(Seen(subscription=name, positions=positions))

    name = f"reader-{query.accepted.query}"
    command = OpenSubscription(stream=query.accepted.stream, subscription=name, since="start")
    query.peer.request(command, heard)
    run.world.run_for(live.SETTLE_MS)
    return rows


def _expected(run: live.LiveRun, query: live.Posed) -> Counter[Row]:
    """What one process without a network makes of the same tuples."""
    streams = {
        name: [
            Tuple(EPOCH + timedelta(milliseconds=wall_ms(stamp)), row, place)
            for place, (stamp, row) in enumerate(sorted(rows))
        ]
        for name, rows in run.published.items()
    }
    return Counter(result.row for result in evaluate(query.plan, streams, final=False))


def test_every_result_of_every_query_is_told_exactly_once(run: live.LiveRun, costs: dict[str, float]):
    found = 0
    for query in run.queries:
        expected = _expected(run, query)
        assert _read(run, query) == expected, live.text_of(query.plan)
        found += expected.total()
    assert found > TUPLES


def test_a_tuple_costs_a_batch_for_each_reading_and_parcels_to_evaluators(run: live.LiveRun, costs: dict[str, float]):
    attributes = Counter(
        at for query in run.queries for at in live.text_of(query.plan).split(" WHERE ")[1].split(" = ")
    )
    assert costs["readings"] == len(attributes)  # All peers know each other, so one reading serves all queries.
    assert costs["index"] <= len(attributes)
    assert costs["hops"] == costs["index"] + costs["joins"]
    assert costs["receipts"] >= costs["hops"]  # An ACK for each batch, a RECEIPT for each parcel, and reports.
    assert costs["bytes"] > 0
    assert costs["receipt_bytes"] > 0


def test_loads_are_those_of_rewriters_and_evaluators(run: live.LiveRun, costs: dict[str, float]):
    wheres = [live.text_of(query.plan).split(" WHERE ")[1] for query in run.queries]
    small, big = (len({where.split(" = ")[side] for where in wheres}) for side in (0, 1))
    assert sum(run.rewriting()) == small * len(run.published["r0"]) + big * len(run.published["r1"])
    triggered = sum(run.filtering()) - sum(run.rewriting())
    assert triggered == len(set(wheres)) * len(run.published["r0"]) + big * len(run.published["r1"])
    held = sum(len(reader.held) for machine in run.machines for reader in machine.joins.rewriter.readers.values())
    assert held == 2 * SIZE.queries
    kept = sum(len(machine.joins.evaluator.tables.queries) for machine in run.machines)
    assert sum(run.storage()) == held + kept + triggered  # Nothing is older than its window yet.


def test_the_rewriter_of_an_attribute_names_the_evaluators_of_all_who_meet_there():
    size = Size(peers=80, queries=6, relations=2)
    run = live.LiveRun(size, seed=2)
    run.pose()
    attempts = [each for machine in run.machines for each in machine.joins.subscriber.attempts.values()]
    assert len(attempts) == size.queries
    named = {attempt.meets_at(): attempt.evaluators for attempt in attempts}
    assert len(named) < size.queries, "some proxies meet"
    assert all(attempt.evaluators == named[attempt.meets_at()] for attempt in attempts)
    assert run.readings == len({(at, each.evaluators) for each in attempts for at in each.join.attributes})
    assert run.readings < 2 * size.queries
