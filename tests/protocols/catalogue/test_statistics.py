"""The statistics of a stream: close to the truth in bounded memory, whatever the tuples."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.catalogue.statistics import (
    FADE_AT,
    FREQUENT_KEPT,
    HALF_LIFE_MS,
    SAMPLE_MAX,
    DistinctCount,
    FieldStatistics,
    FrequentValues,
    Rate,
    StatisticsSketch,
    StreamStatistics,
    has_moved,
)


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
