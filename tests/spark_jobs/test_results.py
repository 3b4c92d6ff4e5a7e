"""Results are told in the order of inputs, once everything they may depend on is through."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa

from queries.aggregates import aggregate
from queries.expressions import EPOCH, Column
from queries.plan import Source, Window, WindowAggregate
from queries.schema import Schema
from spark_jobs.bridge import TIMESTAMP, results_of
from spark_jobs.results import Input, Results, Told
from spark_jobs.retention import Retention

KEY = pa.struct([("end", TIMESTAMP), ("k0", pa.float64())])


def results(inputs: int = 1, *, by_rounds: bool = False) -> Results:
    return Results(inputs, by_rounds=by_rounds)


def batch(*rows: tuple[int, int, int | None, float | None, bool]) -> Told:
    """Rows of value, number, due, key and keep, as they come out of Spark."""
    values, numbers, dues, keys, keeps = zip(*rows, strict=True)
    key = [None if each is None else {"end": due, "k0": each} for each, due in zip(keys, dues, strict=True)]
    said = pa.record_batch(
        {
            "c0": pa.array(values, pa.int64()),
            "number": pa.array(numbers, pa.int64()),
            "due": pa.array(dues, TIMESTAMP),
            "key": pa.array(key, KEY),
            "keep": pa.array(keeps),
        }
    )
    return results_of((Column("", ("k",), "int"),), said)


def numbered(number: int, source: int | None = 0, watermark_us: int | None = None) -> Input:
    return Input(number, source, watermark_us, watermark_us)


def advanced(results: Results) -> tuple[int, list[Any]] | None:
    told = results.advance()
    return None if told is None else (results.done, [row[0] for row in told])


def test_a_result_waits_for_all_inputs_before_its_own():
    one = results(2)
    for item in (numbered(1, 0), numbered(2, 1), numbered(3, 0)):
        one.expect(item)
    one.take(batch((30, 3, None, None, True), (10, 1, None, None, True)))
    one.mark(0, 3)
    assert advanced(one) == (1, [10])
    assert advanced(one) is None
    one.take(batch((20, 2, None, None, True)))
    one.mark(1, 2)
    assert advanced(one) == (3, [20, 30])


def test_an_input_that_spark_need_not_see_is_through_after_those_before_it():
    one = results()
    one.expect(numbered(1))
    one.expect(numbered(2, None, 50))
    assert advanced(one) is None
    one.mark(0, 1)
    assert advanced(one) == (2, [])
    assert one.watermark_us == 50


def test_a_result_that_is_due_later_waits_for_the_watermark():
    one = results()
    one.expect(numbered(1, 0, 99))
    one.expect(numbered(2, 0, 100))
    one.take(batch((7, 1, 100, None, True)))
    one.mark(0, 1)
    assert advanced(one) == (1, [])
    assert one.held == 1
    one.mark(0, 2)
    assert advanced(one) == (2, [7])


def test_of_a_group_the_newest_row_is_told_once_its_window_has_ended():
    nan = float("nan")
    one = results()
    one.expect(numbered(1, 0, 50))
    one.take(batch((1, 1, 50, nan, True), (2, 1, 50, nan, True), (3, 1, 50, 2.0, True), (4, 1, 60, nan, True)))
    one.take(batch((0, 1, 50, 2.0, False)))
    one.mark(0, 1)
    assert advanced(one) == (1, [2])
    assert one.held == 1


def test_a_round_replaces_what_was_said_and_not_told():
    one = results(by_rounds=True)
    one.expect(numbered(1, 0, 10))
    one.expect(numbered(2, 0, 30))
    one.take(batch((1, 1, 5, None, True), (2, 1, 20, None, True)))
    one.end_round(0, 1)
    assert advanced(one) == (1, [1])
    one.take(batch((1, 1, 5, None, True), (3, 2, 20, None, True)))
    one.end_round(0, 2)
    assert advanced(one) == (2, [3])


def test_what_a_round_said_too_early_is_not_told_twice():
    one = results(2, by_rounds=True)
    one.expect(numbered(1, 0))
    one.expect(numbered(2, 1))
    one.expect(numbered(3, 0))
    one.take(batch((1, 1, None, None, True), (3, 3, None, None, True)))
    one.end_round(0, 3)
    one.end_round(1, 0)
    assert advanced(one) == (1, [1])
    one.take(batch((1, 1, None, None, True), (2, 2, None, None, True), (3, 3, None, None, True)))
    one.end_round(0, 3)
    one.end_round(1, 2)
    assert advanced(one) == (3, [2, 3])


def test_rows_are_removed_once_enough_came_after_them_and_no_stream_is_behind():
    source = Source("s", "s", Schema.parse("k int"), Window("rows", 2))
    one = Retention(source, source)
    for rank in range(4):
        one.add(rank + 1, rank + 1, [(7, EPOCH + timedelta(microseconds=rank * 10), rank)])
    assert one.removable(4, None) == 0
    assert one.removable(4, 20) == 0  # The third row pushes the first one out at 20, and rows of 20 may still come.
    assert one.removable(4, 21) == 1
    assert one.removable(4, 1000) == 2


def test_rows_under_windows_of_time_are_removed_when_those_have_passed():
    source = Source("s", "s", Schema.parse("k int"), Window("time", 100, 50))
    one = Retention(source, source)
    one.add(1, 1, [(7, EPOCH)])
    assert [one.removable(1, 150), one.removable(1, 151)] == [0, 1]


def test_rows_under_windows_of_values_are_removed_once_a_value_beyond_them_has_been_told():
    window = Window("value", 10, None, ("k",))
    source = Source("s", "s", Schema.parse("k int null"), window)
    one = Retention(WindowAggregate(source, window, (), (aggregate("n", "count", None),)), source)
    for number, value in enumerate((3, None, 12, 13, 4, 60), 1):
        one.add(number, number, [(value, EPOCH)])
    assert one.removable(3, None) == 0
    assert one.removable(4, None) == 2  # With 13 the last window of 3 is complete; without a value a row is in none.
    assert one.removable(6, None) == 5
    assert one.removable(99, None) == 0
