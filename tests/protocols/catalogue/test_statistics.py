"""The statistics of a stream: close to the truth in bounded memory, whatever the tuples."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.catalogue.statistics import (
    FREQUENT_KEPT,
    HALF_LIFE_MS,
    SAMPLE_MAX,
    DistinctCount,
    FrequentValues,
    Rate,
    StatisticsSketch,
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
