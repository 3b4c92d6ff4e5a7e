"""Rows that come after all their windows of values have closed: left out as the reference says, and counted."""

from __future__ import annotations

import random

import pytest

from protocols.clock import COUNT_BITS
from protocols.delivery.messages import Batch, Origin
from protocols.execution.cut import cut
from protocols.execution.run import SubgraphRun
from queries import query, reference
from queries.schema import Row
from tests.protocols.execution.parts import NORTH, PROXY, deploy_of, rows_of
from tests.queries.wx_streams import PHOTON, PHOTONS, START, STREAMS, photon
from tests.seeds import draw_seed

PHOTONS_OF_NORTH = Origin(NORTH, "photons", 1)
COUNT = "let $n := count($w) return <n>{ $n }</n>"


def run_of(text: str) -> SubgraphRun:
    plan = query.parse(text, STREAMS).plan
    (subgraph,) = cut("q.1", plan, 7, {}, PROXY, PROXY, "auto").subgraphs
    return SubgraphRun(deploy_of(subgraph), "q.1.0~1", now=0)


def fed(run: SubgraphRun, rows: list[Row], at_once: int) -> list[Row]:
    """The rows that the engine gets of those that are published, so many in one batch."""
    taken: list[Row] = []
    for first in range(0, len(rows), at_once):
        some = rows[first : first + at_once]
        effects, _ = run.take_batch(
            "w",
            Batch(PHOTONS_OF_NORTH, first, len(some), (1000 + first) << COUNT_BITS, PHOTONS.schema.encode(some)),
            now=0,
        )
        taken += [row[: len(PHOTONS.schema.fields)] for row in rows_of(effects)]
    return taken


@pytest.mark.parametrize("window", ["10 step 5", "10", "2 step 5", "0.5 step 0.25"])
@pytest.mark.parametrize("condition", ["", "[en >= 1.0]"])
def test_every_row_is_used_or_counted_as_late(window: str, condition: str):
    rng = random.Random(draw_seed())
    rows = [photon(rng.choice(("0.5", "1.5")), str(rng.randrange(max(0, n - 40), n + 10) / 4)) for n in range(400)]
    text = f"for $w in {PHOTON}{condition} |det_time diff {window}| {COUNT}"
    plan = query.parse(text, STREAMS).plan
    tuples = [reference.Tuple(START, row, number) for number, row in enumerate(rows)]
    for at_once in (1, 7, 400):
        run = run_of(text)
        taken = fed(run, rows, at_once)
        (status,) = run.status(7, now=0).inputs
        assert status.late == reference.late(run.plan, {"photons": tuples}) > 0
        assert status.rows + status.late == len(rows)
        left = {"photons": [reference.Tuple(START, row, number) for number, row in enumerate(taken)]}
        assert [each.row for each in reference.evaluate(plan, left)] == [
            each.row for each in reference.evaluate(plan, {"photons": tuples})
        ]


def test_a_value_inside_a_record_orders_a_stream_too():
    run = run_of(f"for $w in {PHOTON} |coord/cel/ra diff 10| {COUNT}")
    taken = fed(run, [photon("1.0", ra=ra) for ra in ("5", "25", "19.9", "20")], at_once=4)
    assert [str(row[0][0][0]) for row in taken] == ["5", "25", "20"]
    assert run.status(7, now=0).inputs[0].late == 1
