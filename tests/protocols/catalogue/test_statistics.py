"""The statistics of a stream: close to the truth in bounded memory, whatever the tuples."""

from __future__ import annotations

import math
import random
from collections import Counter
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.catalogue.statistics import (
    FADE_AT,
    FREQUENT_KEPT,
    HALF_LIFE_MS,
    NUMBERS_KEPT,
    NUMBERS_TOLD,
    QUANTILES,
    SAMPLE_MAX,
    DistinctCount,
    FieldStatistics,
    FrequentValues,
    NumberStatistics,
    Rate,
    StatisticsSketch,
    StreamStatistics,
    has_moved,
)
from queries.schema import Schema


@pytest.mark.parametrize("after_ms", [1_000, 5_000, 100_000])
def test_a_steady_rate_is_told_from_the_first_second_on(after_ms: int):
    rate = Rate()
    for now in range(0, after_ms, 10):
        rate.count(5, now)
    assert rate.per_second(after_ms) == pytest.approx(500, rel=0.02)


def test_half_of_a_rate_is_forgotten_in_a_half_life():
    rate = Rate()
    for now in range(0, 200_000, 10):
        rate.count(5, now)
    assert rate.per_second(200_000 + HALF_LIFE_MS) == pytest.approx(250, rel=0.02)
    assert Rate().per_second(7) == 0


def test_a_clock_that_steps_back_does_no_harm():
    rate = Rate()
    rate.count(5, 10_000)
    rate.count(5, 9_000)
    assert rate.per_second(10_000) > 0


@pytest.mark.parametrize("truth", [10, 255, 1_000, 100_000])
def test_distinct_values_are_counted_within_a_fifth(truth: int):
    seed = 7
    print(f"seed={seed}")
    rng, distinct = random.Random(seed), DistinctCount()
    hashes = [rng.getrandbits(64) for _ in range(truth)]
    for hashed in hashes + hashes[:1000]:
        distinct.add(hashed)
    assert distinct.estimate() == pytest.approx(truth, rel=0.0 if truth < 256 else 0.2)


@given(st.lists(st.integers(0, 100).map(str), max_size=400))
def test_space_saving_keeps_its_bounds(values: list[str]):
    """ "A count is never too low, and too high by at most N / m" (Metwally et al., 2005, Lemma 3 and Theorem 1)."""
    frequent, truth = FrequentValues(), Counter(values)
    for value in values:
        frequent.add(value)
    for value, (count, error) in frequent._counts.items():
        assert count - error <= truth[value] <= count
        assert error <= len(values) / FREQUENT_KEPT
    kept = frequent._counts
    assert all(value in kept for value, count in truth.items() if count > len(values) / FREQUENT_KEPT)
    assert all(share <= truth[value] / len(values) + 1e-4 for value, share in frequent.shares())


def test_skew_shows_and_its_absence_does_not():
    skewed, even = FrequentValues(), FrequentValues()
    for number in range(3_000):
        skewed.add("hot" if number % 2 else str(number))
        even.add(str(number))
    assert [value for value, _ in skewed.shares()] == ["hot"]
    assert skewed.shares()[0][1] == pytest.approx(0.5, abs=0.05)
    assert even.shares() == ()


def test_of_few_values_none_is_taken_for_frequent_by_luck():
    """Of ten values each has a share far above 1 / FREQUENT_KEPT; a value that is there by far most shows soon."""
    frequent = FrequentValues()
    for number in range(10):
        frequent.add(str(number))
    assert frequent.shares() == ()
    for _ in range(8):
        frequent.add("hot")
    assert frequent.shares() == (("hot", round(8 / 18, 4)),)


def test_what_is_frequent_now_shows_though_it_was_rare_for_long():
    frequent = FrequentValues()
    for number in range(100_000):
        frequent.add("old" if number % 2 else str(number))
    for number in range(FADE_AT):
        frequent.add("new" if number % 2 else str(number))
    (value, share), (other, least) = frequent.shares()
    assert (value, other) == ("new", "old")
    assert share == pytest.approx(1 / 3, abs=0.05)
    assert least == pytest.approx(1 / 6, abs=0.05)
    assert all(error <= count for count, error in frequent._counts.values())


def test_a_batch_in_an_order_of_its_own_is_looked_at_all_over():
    """Every tenth row is hot, always at the same places: with the same sixteen rows of each batch, none or all."""
    sketch = StatisticsSketch(("key",))
    for number in range(100):
        rows = [("hot" if place % 10 == 0 else f"{number} {place}",) for place in range(160)]
        sketch.add(rows, count=160, size=1, now=0)
    assert sketch.summary(now=0).fields[0].frequent == (('"hot"', pytest.approx(0.1, abs=0.01)),)


def told(rate_per_s: float, distinct: float, **shares: float) -> StreamStatistics:
    known = FieldStatistics(name="key", distinct=distinct, frequent=tuple(shares.items()))
    return StreamStatistics(rate_per_s=rate_per_s, row_bytes=1.0, fields=(known,))


def test_statistics_that_one_would_plan_otherwise_by_have_moved():
    before = told(100.0, 50.0, hot=0.4, warm=0.1)
    for same in (told(190.0, 50.0, hot=0.4, warm=0.1), told(60.0, 90.0, hot=0.36, warm=0.14, mild=0.04)):
        assert not has_moved(before, same)
    for other in (
        told(210.0, 50.0, hot=0.4, warm=0.1),
        told(40.0, 50.0, hot=0.4, warm=0.1),
        told(100.0, 110.0, hot=0.4, warm=0.1),
        told(100.0, 50.0, hot=0.5, warm=0.1),
        told(100.0, 50.0, hot=0.4),
        told(100.0, 50.0, hot=0.4, warm=0.1, mild=0.06),
    ):
        assert has_moved(before, other)
    assert has_moved(None, before)
    assert not has_moved(told(0.0, 0.0), told(0.9, 1.0))


def test_a_batch_is_sampled_and_all_of_it_is_counted():
    sketch = StatisticsSketch(("id",))
    sketch.add([(number,) for number in range(1_000)], count=1_000, size=9_000, now=0)
    summary = sketch.summary(now=1_000)
    assert summary.row_bytes == 9.0
    assert 1 < summary.fields[0].distinct <= SAMPLE_MAX
    assert summary.rate_per_s == pytest.approx(1_000, rel=0.1)


def test_an_empty_batch_and_an_empty_stream_have_statistics():
    sketch = StatisticsSketch(("id",))
    sketch.add([], count=0, size=0, now=0)
    assert sketch.summary(now=0).row_bytes == 0


def test_numbers_are_told_by_their_quantiles_also_inside_records():
    seed = 11
    print(f"seed={seed}")
    rng = random.Random(seed)
    sketch = StatisticsSketch.of(Schema.parse("name string, at record(x float, y int null) null, n decimal").fields)
    for _ in range(NUMBERS_KEPT):
        place = None if rng.random() < 0.25 else (rng.uniform(0, 100), None)
        sketch.add([("a", place, Decimal(7))], count=1, size=1, now=0)
    x, n = sketch.summary(now=0).numbers  # Of y there is nothing to tell.
    assert (x.path, n.path) == (("at", "x"), ("n",))
    assert x.nulls == pytest.approx(0.25, abs=0.06)
    assert len(x.quantiles) == QUANTILES + 1
    for number, told in enumerate(x.quantiles):
        assert told == pytest.approx(100 * number / QUANTILES, abs=8)
    assert n == NumberStatistics(path=("n",), quantiles=(7.0,) * (QUANTILES + 1), nulls=0.0)


def test_old_numbers_are_forgotten_and_odd_ones_are_none():
    sketch = StatisticsSketch.of(Schema.parse("x float").fields)
    for number in range(3 * NUMBERS_KEPT):
        value = 1e9 if number < 2 * NUMBERS_KEPT else math.nan if number % 2 else 5.0
        sketch.add([(value,)], count=1, size=1, now=0)
    (x,) = sketch.summary(now=0).numbers
    assert (set(x.quantiles), x.nulls) == ({5.0}, 0.5)


def test_a_wide_stream_does_not_make_a_long_advertisement():
    sketch = StatisticsSketch.of(Schema.parse(", ".join(f"x{number} int" for number in range(200))).fields)
    sketch.add([tuple(range(200))], count=1, size=1, now=0)
    summary = sketch.summary(now=0)
    assert len(summary.numbers) == NUMBERS_TOLD
    assert len(msgspec.msgpack.encode(summary)) < 12_000


def test_quantiles_and_peers_that_know_nothing_of_them_understand_each_other():
    """A peer of 0.2 tells three fields and skips a fourth."""
    before = msgspec.msgpack.encode((2.5, 40.0, ()))
    now = msgspec.msgpack.decode(before, type=StreamStatistics)
    assert now == StreamStatistics(rate_per_s=2.5, row_bytes=40.0, fields=())
    told = msgspec.structs.replace(now, numbers=(NumberStatistics(path=("x",), quantiles=(1.0, 2.0)),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told))[:3] == [2.5, 40.0, []]


@pytest.mark.parametrize("quantiles", [(2.0, 1.0), (1.0,), (1.0, math.nan), (0.0, math.inf), tuple(range(99))])
def test_quantiles_that_cannot_be_true_are_known_as_such(quantiles: tuple[float, ...]):
    assert not NumberStatistics(path=("x",), quantiles=quantiles).is_sensible
    assert not NumberStatistics(path=("x",), quantiles=(1.0, 2.0), nulls=math.nan).is_sensible
