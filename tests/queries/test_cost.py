"""Estimates: the papers' formulas, that the order of joins does not matter, and what the reference evaluator counts."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import permutations

import pytest

from protocols.catalogue.statistics import StatisticsSketch
from queries import sql, wxquery
from queries.catalogue import Stream
from queries.cost import LIST_BYTES, TYPE_BYTES, Rates, StreamRates
from queries.expressions import EPOCH
from queries.plan import Join, Operator, Source, walk
from queries.reference import Tuple, evaluate
from queries.schema import Schema
from queries.selectivity import BOUNDED, EQUAL, ColumnStatistics
from tests.queries.wx_streams import STREAMS as XML_STREAMS

STREAMS = {
    stream.name: stream
    for stream in (
        Stream("flights", Schema.parse("num int, dest string, gate string, delay int")),
        Stream("checkins", Schema.parse("flight int, status string")),
        Stream("weather", Schema.parse("city string, forecast string")),
    )
}
# IFLOW, figure 5: rates of the enterprise workload, 100 bytes for each record.
ENTERPRISE = Rates(
    {
        "flights": StreamRates(
            rate_per_s=1500 / 300,
            row_bytes=100.0,
            columns={
                ("num",): ColumnStatistics(distinct=1500),
                ("dest",): ColumnStatistics(distinct=450, frequent=(('"ATL"', 0.25),)),
                ("delay",): ColumnStatistics(low=0, high=100, distinct=101),
            },
        ),
        "checkins": StreamRates(
            rate_per_s=240 / 60, row_bytes=100.0, columns={("flight",): ColumnStatistics(distinct=120)}
        ),
        "weather": StreamRates(
            rate_per_s=450 / 300, row_bytes=100.0, columns={("city",): ColumnStatistics(distinct=450)}
        ),
    }
)
PHOTONS = Rates(
    {
        "photons": StreamRates(
            rate_per_s=100.0,
            row_bytes=60.0,
            columns={
                ("coord", "cel", "ra"): ColumnStatistics(low=0, high=360, row_bytes=8.0),
                ("coord", "cel", "dec"): ColumnStatistics(low=-90, high=90, row_bytes=8.0),
                ("coord", "det", "dx"): ColumnStatistics(row_bytes=4.0),
                ("coord", "det", "dy"): ColumnStatistics(row_bytes=4.0),
                ("phc",): ColumnStatistics(row_bytes=6.0),
                ("en",): ColumnStatistics(row_bytes=10.0),
                ("det_time",): ColumnStatistics(row_bytes=20.0, increment=0.5),
            },
        )
    }
)


def plan_of(text: str) -> Operator:
    return sql.plan(text, STREAMS).plan


def photons(text: str) -> Operator:
    return wxquery.plan(f'<r>{{ for $p in stream("photons")/photons/photon{text} }}</r>', XML_STREAMS).plan


@pytest.mark.parametrize(
    ("where", "share"),
    [
        ("delay <= 25", 0.25),
        ("delay >= 20 AND delay <= 30", 0.1),
        ("delay BETWEEN 20 AND 30 AND 10 < delay", 0.1),
        ("delay > 100 AND delay < 50", 0.0),
        ("delay = 7", 1 / 101),
        ("delay <> 7", 100 / 101),
        ("delay = 700", 0.0),
        ("dest = 'ATL'", 0.25),
        ("dest = 'VIE'", 0.75 / 449),
        ("dest IN ('ATL', 'VIE')", 0.25 + 0.75 / 449),
        ("dest = 'ATL' AND delay <= 50", 0.125),
        ("NOT (dest = 'ATL' AND delay <= 50)", 1 - 0.125),
        ("dest = 'ATL' OR dest = 'VIE'", 1 - 0.75 * (1 - 0.75 / 449)),
        ("gate = 'B7'", EQUAL),
        ("gate > 'B7'", BOUNDED),
        ("gate LIKE 'B%'", EQUAL),
        ("gate IS NULL", 0.0),
        ("1 = 2", 0.0),
    ],
)
def test_a_selection_keeps_the_share_its_predicate_says(where: str, share: float) -> None:
    below = ENTERPRISE.estimate(plan_of("SELECT num FROM flights")).rate_per_s
    assert ENTERPRISE.estimate(plan_of(f"SELECT num FROM flights WHERE {where}")).rate_per_s == pytest.approx(
        below * share
    )


def test_a_projection_takes_away_what_it_leaves_out() -> None:
    """StreamGlobe, section 3.2: size(p) is size(s) less occurrence times size of every element left out."""
    query = photons(" where $p/coord/cel/ra >= 90.0 return <q> { $p/coord/cel } { $p/en } </q>")
    estimate = PHOTONS.estimate(query)
    assert estimate.row_bytes == pytest.approx(60.0 - 4.0 - 4.0 - 6.0 - 20.0)
    assert estimate.rate_per_s == pytest.approx(100.0 * 0.75)
    assert estimate.beta == pytest.approx(75.0 * 26.0)


def test_fields_of_unknown_size_share_what_the_others_leave() -> None:
    rates = Rates(
        {"flights": StreamRates(rate_per_s=1, row_bytes=47.0, columns={("num",): ColumnStatistics(row_bytes=10.0)})}
    )
    # 37 bytes for dest and gate, of 16 usual bytes each, and delay, of 5.
    assert rates.estimate(plan_of("SELECT num, dest FROM flights")).row_bytes == pytest.approx(10.0 + 16.0)
    assert rates.estimate(plan_of("SELECT num, dest, gate, delay FROM flights")).row_bytes == pytest.approx(47.0)


@pytest.mark.parametrize(
    ("window", "rate"),
    [
        ("|count 20 step 10|", 100 / 10),  # freq over μ
        ("|count 20|", 100 / 20),
        ("|det_time diff 60 step 40|", 100 / (40 / 0.5)),  # freq over (μ over the average increment)
    ],
)
def test_a_window_divides_the_frequency_by_its_step(window: str, rate: float) -> None:
    """StreamGlobe, section 3.2, on windows of items and of a reference element."""
    query = photons(f"{window} let $a := avg($p/en) return <a> {{ $a }} </a>")
    estimate = PHOTONS.estimate(query)
    assert estimate.rate_per_s == pytest.approx(rate)
    assert estimate.row_bytes == TYPE_BYTES["decimal"], "the size of an aggregate is that of its value"


def test_a_selection_before_a_reference_window_does_not_slow_it_down() -> None:
    query = photons("[coord/cel/ra >= 180.0] |det_time diff 60 step 40| let $a := avg($p/en) return <a> { $a } </a>")
    assert PHOTONS.estimate(query).rate_per_s == pytest.approx(100 / 80)


def test_a_returned_window_is_as_large_as_its_items() -> None:
    query = photons(" |count 20 step 10| return <w> { for $i in $p return <i> { $i/en } </i> } </w>")
    estimate = PHOTONS.estimate(query)
    assert (estimate.rate_per_s, estimate.row_bytes) == (pytest.approx(10.0), pytest.approx(LIST_BYTES + 20 * 10.0))


def test_the_rate_of_a_join_follows_from_windows_and_distinct_values() -> None:
    query = plan_of(
        "SELECT f.num FROM flights [RANGE 5 MINUTES] AS f, checkins [RANGE 1 MINUTE] AS c WHERE f.num = c.flight"
    )
    assert ENTERPRISE.estimate(query).rate_per_s == pytest.approx(5.0 * 4.0 * (300 + 60) / 1500)


def test_every_order_of_joins_has_the_same_rate() -> None:
    names = ("flights [RANGE 5 MINUTES] AS f", "checkins [ROWS 20] AS c", "weather AS w")
    where = "f.num = c.flight AND f.dest = w.city AND f.delay > 50"
    figures = []
    for order in permutations(names):
        estimate = ENTERPRISE.estimate(plan_of(f"SELECT f.num, w.forecast FROM {', '.join(order)} WHERE {where}"))
        figures.append((estimate.rate_per_s, estimate.row_bytes))
    assert all(each == pytest.approx(figures[0]) for each in figures)


def test_a_planner_may_ask_for_any_subset_of_a_join() -> None:
    query = plan_of(
        "SELECT f.num FROM flights [RANGE 5 MINUTES] AS f, checkins [RANGE 1 MINUTE] AS c,"
        " weather [RANGE 5 MINUTES] AS w WHERE f.num = c.flight AND f.dest = w.city AND f.delay <= 50"
    )
    join = next(each for each in reversed(list(walk(query))) if isinstance(each, Join))
    whole = ENTERPRISE.of_subset(join, ["w", "f", "c"])
    assert whole.rate_per_s == pytest.approx(ENTERPRISE.estimate(query).rate_per_s)
    assert ENTERPRISE.of_subset(join, ["f"]).rate_per_s == pytest.approx(2.5)
    two = ENTERPRISE.of_subset(join, ["f", "c"])
    assert two.rate_per_s == pytest.approx(2.5 * 4.0 * 360 / 1500)
    assert two.row_bytes == pytest.approx(200.0)
    assert ENTERPRISE.of_subset(join, ["c", "w"]).rate_per_s == pytest.approx(4.0 * 1.5 * 360), "every pair"


def test_beta_is_told_for_every_edge_of_the_tree() -> None:
    query = plan_of("SELECT f.num FROM flights [RANGE 5 MINUTES] AS f, checkins AS c WHERE f.num = c.flight")
    told = list(ENTERPRISE.estimates(query))
    assert [each for each, _ in told] == list(walk(query))
    assert [estimate.beta for each, estimate in told if isinstance(each, Source)] == [500.0, 400.0]


def test_a_stream_nobody_knows_has_a_guess() -> None:
    assert Rates({}).estimate(plan_of("SELECT num FROM flights WHERE delay > 5")).rate_per_s == pytest.approx(100 / 3)


def test_quantiles_tell_what_a_selection_keeps_however_the_numbers_are_spread() -> None:
    seed = 12
    print(f"seed={seed}")
    rng = random.Random(seed)
    sketch = StatisticsSketch.of(Schema.parse("num int, dest string, delay int").fields)
    rows = [(number, "ATL", int(rng.expovariate(1 / 20))) for number in range(4000)]
    for first in range(0, 4000, 10):
        sketch.add(rows[first : first + 10], count=10, size=100, now=0)
    (known,) = (each for each in sketch.summary(now=0).numbers if each.path == ("delay",))
    delay = ColumnStatistics(quantiles=known.quantiles)
    flights = Rates({"flights": StreamRates(rate_per_s=1.0, row_bytes=10.0, columns={("delay",): delay})})
    for low, high in ((0, 5), (5, 20), (30, 60), (50, 1000)):
        truth = sum(low <= row[2] <= high for row in rows) / len(rows)
        query = plan_of(f"SELECT num FROM flights WHERE delay BETWEEN {low} AND {high}")
        assert flights.estimate(query).rate_per_s == pytest.approx(truth, abs=0.05)
    assert 0 < flights.estimate(plan_of("SELECT num FROM flights WHERE delay > 1000000")).rate_per_s < 0.01


def test_quantiles_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="ascending"):
        ColumnStatistics(quantiles=(2.0, 1.0))


def test_advertised_statistics_can_be_used_as_they_are() -> None:
    sketch = StatisticsSketch(("num", "dest"))
    rows = [(number, "ATL" if number % 2 else f"A{number}") for number in range(16)]
    sketch.add(rows, count=1600, size=16_000, now=0)
    told = sketch.summary(now=1000)
    columns = {(each.name,): ColumnStatistics(distinct=each.distinct, frequent=each.frequent) for each in told.fields}
    statistics = StreamRates(rate_per_s=told.rate_per_s, row_bytes=told.row_bytes, columns=columns)
    estimate = Rates({"flights": statistics}).estimate(plan_of("SELECT num FROM flights WHERE dest = 'ATL'"))
    assert estimate.rate_per_s == pytest.approx(told.rate_per_s / 2)


def tuples(rng: random.Random, stream: str, seconds: int, rate: float) -> list[Tuple]:
    """Tuples at random instants, with values spread as the statistics say."""
    found = []
    for number in range(int(seconds * rate)):
        row = {
            "flights": (rng.randrange(20), rng.choice(["ATL", "VIE", "CDG", "JFK"]), "B7", rng.randrange(101)),
            "checkins": (rng.randrange(20), "ok"),
            "weather": (rng.choice(["ATL", "VIE", "CDG", "JFK"]), "fog"),
        }[stream]
        found.append((EPOCH + timedelta(seconds=rng.random() * seconds), row, f"{stream} {number}"))
    return [Tuple(*each) for each in sorted(found)]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT num FROM flights WHERE delay < 60 AND dest <> 'ATL'",
        "SELECT f.num FROM flights [RANGE 20 SECONDS] AS f, checkins [RANGE 10 SECONDS] AS c WHERE f.num = c.flight",
        "SELECT f.num FROM flights [ROWS 20] AS f, checkins [RANGE 10 SECONDS] AS c WHERE f.num = c.flight",
        "SELECT f.num FROM flights [RANGE 20 SECONDS] AS f, checkins [RANGE 10 SECONDS] AS c,"
        " weather [RANGE 5 SECONDS] AS w WHERE f.num = c.flight AND f.dest = w.city AND f.delay >= 40",
        "SELECT dest, count(*) AS n FROM flights GROUP BY dest, HOP(INTERVAL '8' SECOND, INTERVAL '4' SECOND)",
        "SELECT num, max(delay) AS d FROM flights GROUP BY num, TUMBLE(INTERVAL '5' SECOND)",
        "SELECT dest, count(*) AS n FROM flights [ROWS 20 SLIDE 10] WHERE delay < 50 GROUP BY dest",
    ],
)
def test_estimates_come_close_to_what_is_counted(text: str) -> None:
    rng, seconds = random.Random(4), 300
    rates = {"flights": 2.0, "checkins": 3.0, "weather": 1.0}
    columns = {
        "flights": {
            ("num",): ColumnStatistics(distinct=20),
            ("dest",): ColumnStatistics(distinct=4),
            ("delay",): ColumnStatistics(low=0, high=101, distinct=101),
        },
        "checkins": {("flight",): ColumnStatistics(distinct=20)},
        "weather": {("city",): ColumnStatistics(distinct=4)},
    }
    known = Rates(
        {name: StreamRates(rate_per_s=rate, row_bytes=50.0, columns=columns[name]) for name, rate in rates.items()}
    )
    query = plan_of(text)
    counted = len(evaluate(query, {name: tuples(rng, name, seconds, rate) for name, rate in rates.items()})) / seconds
    assert known.estimate(query).rate_per_s == pytest.approx(counted, rel=0.25)
