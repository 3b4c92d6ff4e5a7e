"""One subgraph: rows in, results out in order, and what is said to be covered by them."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from protocols.clock import COUNT_BITS
from protocols.delivery.messages import FINISHED_US, Batch, Missed, Origin, Position, Publishers
from protocols.delivery.needs import Sieved, skipped
from protocols.execution.cut import cut
from protocols.execution.engine import FeedRun, StartRun
from protocols.execution.flow_rows import decode_rows, encode_rows
from protocols.execution.run import RunOutput, SubgraphRun
from protocols.part import PART_ROWS_MAX
from protocols.subgraphs import PATIENCE_MS, Progress
from queries.catalogue import Stream
from queries.expressions import EPOCH
from queries.query import parse
from queries.schema import Schema
from tests.protocols.execution.parts import (
    JOIN,
    LEFT,
    PROXY,
    PUBLISHERS,
    RIGHT,
    SELECT,
    SOUTH,
    WINDOWS,
    WORKER,
    at,
    batch,
    deploy_of,
    flow,
    numbered,
    reach,
    rows_of,
    run_of,
    silence,
)

SECOND = 1_000_000


def test_results_come_with_what_they_cover():
    run = run_of(SELECT)
    effects, results = run.take_batch("left", batch(LEFT, 0, (1, 1, at(1)), (2, 0, at(2)), (3, 1, at(3))), now=0)
    covers = (reach("left", LEFT, 3),)
    assert effects == []
    progress = Progress(covers, covers, 3 * SECOND, 3 * SECOND)
    assert results == [RunOutput([(1,), (3,)], True, progress, progress)]
    assert run.to_acknowledge == {"left": {LEFT: Position(LEFT, 3)}}


def sieved(first: int, count: int, latest_s: int, *rows: tuple) -> Batch:
    """A batch of which only the rows at some places are left; each row says where it stands."""
    left = batch(LEFT, first, *((number, part, time) for _, number, part, time in rows)).rows if rows else b"\x90"
    said = Sieved(1, skipped([place - first for place, *_ in rows]), latest_s * SECOND, ())
    return Batch(LEFT, first, count, 9 << COUNT_BITS, left, said)


def test_what_was_left_out_is_covered_and_counted_and_moves_the_watermark():
    run = run_of(SELECT)
    _, results = run.take_batch("left", sieved(0, 10, 7, (3, 33, 1, at(4)), (8, 88, 1, at(5))), now=0)
    covers = (reach("left", LEFT, 10),)
    progress = Progress(covers, covers, 7 * SECOND, 7 * SECOND)
    assert results == [RunOutput([(33,), (88,)], True, progress, progress)]
    _, results = run.take_batch("left", sieved(10, 5, 9), now=0)
    covers = (reach("left", LEFT, 15),)
    assert [each.progress for each in results] == [Progress(covers, covers, 9 * SECOND, 9 * SECOND)]
    assert run.rows_in == {"left": 15}


def test_a_sieved_batch_that_was_told_in_part_is_fed_in_two():
    run = run_of(SELECT, resume=Progress((reach("left", LEFT, 4),), (reach("left", LEFT, 4),)))
    _, results = run.take_batch(
        "left", sieved(0, 10, 7, (3, 33, 1, at(4)), (4, 44, 1, at(5)), (8, 88, 1, at(5))), now=0
    )
    assert [(list(each.rows), each.is_new, each.progress.covers) for each in results] == [
        ([], False, (reach("left", LEFT, 4),)),
        ([(44,), (88,)], True, (reach("left", LEFT, 10),)),
    ]


def test_parts_of_a_large_batch_cover_no_more_than_themselves():
    """Else a crash between the first part and the second would lose the second."""
    _, results = run_of(SELECT).take_batch("left", numbered(LEFT, 0, PART_ROWS_MAX + 5), now=0)
    assert [(len(each.rows), each.reached.covers) for each in results if each.reached is not None] == [
        (PART_ROWS_MAX, (reach("left", LEFT, PART_ROWS_MAX),)),
        (5, (reach("left", LEFT, PART_ROWS_MAX + 5),)),
    ]


def test_a_run_without_state_begins_behind_what_was_told():
    run = run_of(SELECT, resume=Progress((reach("left", LEFT, 4),), (reach("left", LEFT, 4),)))
    assert run.start_positions("left") == (Position(LEFT, 4),)


def test_two_sources_of_one_stream_go_on_each_where_it_was():
    text = "SELECT number FROM left WHERE part = 1 UNION ALL SELECT number + 9 FROM left"
    run = run_of(text)
    run.take_batch("left", numbered(LEFT, 0, 5), now=0)
    assert run.reached.covers == (reach("left", LEFT, 5),)
    again = run_of(text, resume=run.reached)
    assert again.start_positions("left") == (Position(LEFT, 5),)
    assert again.start_positions("left_2") == (), "from the beginning"
    _, results = again.take_batch("left_2", numbered(LEFT, 0, 2), now=0)
    assert [each.rows for each in results] == [[(9,), (10,)]]


def test_state_is_fed_the_rows_it_had_and_told_which_are_new():
    resume = Progress((reach("l", LEFT, 4),), (reach("l", LEFT, 2),), watermark_us=5)
    run = run_of(JOIN, resume=resume)
    assert run.start() == [StartRun("q.1.0~1", run.plan, 5)]
    assert run.start_positions("l") == (Position(LEFT, 2),)
    effects, _ = run.take_batch("l", numbered(LEFT, 2, 4), now=0)
    assert [(each.number, len(each.rows), each.is_new) for each in effects if isinstance(each, FeedRun)] == [
        (1, 2, False),
        (2, 2, True),
    ]


def test_what_is_covered_is_not_said_until_the_rows_of_before_are_back():
    resume = Progress((reach("l", LEFT, 2), reach("r", RIGHT, 2)))
    run = run_of(JOIN, resume=resume)
    run.take_batch("l", numbered(LEFT, 0, 3), now=0)
    assert [each.reached for each in run.finished(2, [(2, 2)])] == [None]
    run.take_batch("r", numbered(RIGHT, 0, 2), now=0)
    (whole,) = run.finished(3, [])
    assert whole.reached is not None
    assert whole.reached.covers == (reach("l", LEFT, 3), reach("r", RIGHT, 2))


def test_a_publisher_that_does_not_come_back_is_not_waited_for_for_ever():
    run = run_of(JOIN, resume=Progress((reach("l", LEFT, 2), reach("r", RIGHT, 2))))
    run.take_batch("l", numbered(LEFT, 0, 3), now=PATIENCE_MS)
    assert [each.reached is not None for each in run.finished(2, [])] == [True]
    effects, _ = run.take_batch("r", numbered(RIGHT, 0, 2), now=PATIENCE_MS + 1)
    assert [each.is_new for each in effects if isinstance(each, FeedRun)] == [False], "should it, it is known"


def test_what_comes_of_old_rows_and_new_ones_is_new():
    """A relay drops what is not: a new row may be there before the old one that it meets."""
    run = run_of(JOIN, number=1, worker=WORKER, resume=Progress((reach("r", RIGHT, 2),)))
    run.take_batch("l", numbered(LEFT, 0, 1), now=0)
    run.finished(1, [])
    run.take_batch("r", numbered(RIGHT, 0, 1), now=0)
    assert [each.is_new for each in run.finished(2, [(0, 0, at(0))])] == [True]


def test_no_window_closes_before_the_rows_are_back_that_were_in_it():
    other = Origin(SOUTH, "left", 1)
    run = run_of(WINDOWS, engine="spark", resume=Progress((reach("left", LEFT, 1), reach("left", other, 1))))
    effects, _ = run.take_batch("left", numbered(LEFT, 0, 9), now=0)
    assert [each.watermark_us for each in effects if isinstance(each, FeedRun)] == [None, None]
    run.take_batch("left", numbered(other, 0, 1), now=0)
    run.take_silence("left", silence(other, 1), now=0)
    run.take_batch("left", numbered(LEFT, 9, 1), now=0)
    assert run.watermark_us == 9 * SECOND


def test_a_publisher_that_has_more_to_give_is_waited_for_however_long_that_takes():
    """After a restart of its reader one publisher is read quickly and another slowly: none of their rows is late."""
    other = Origin(SOUTH, "left", 1)
    run = run_of(
        WINDOWS, engine="spark", resume=Progress((reach("left", LEFT, 1), reach("left", other, 1)), watermark_us=0)
    )
    run.take_batch("left", numbered(LEFT, 0, 90), now=0)
    run.take_batch("left", numbered(other, 0, 2), now=0)
    run.take_silence("left", silence(LEFT, 90), now=0)
    run.tick(now=30_000)
    assert run.watermark_us == 1 * SECOND, "the other has not said that this is all"
    effects, _ = run.take_batch("left", numbered(other, 2, 80), now=30_000)
    assert len(rows_of(effects)) == 80
    assert run.status(7, now=30_000).inputs[0].late == 0


def test_windows_that_were_told_take_no_new_rows_in_the_next_attempt():
    run = run_of(WINDOWS, engine="spark", resume=Progress((reach("left", LEFT, 1),), (), watermark_us=20 * SECOND))
    effects, _ = run.take_batch("left", numbered(LEFT, 0, 3), now=0)
    assert [(len(each.rows), each.is_new) for each in effects if isinstance(each, FeedRun)] == [(1, False), (0, True)]
    assert run.status(7, now=0).inputs[0].late == 2, "the old row is there for the state"


def test_the_last_windows_close_when_every_publisher_has_finished():
    other = Origin(SOUTH, "left", 1)
    run = run_of(WINDOWS, engine="spark")
    run.meet("left", Publishers(origins=(LEFT, other)), now=0)
    run.take_batch("left", numbered(LEFT, 0, 12), now=0)
    run.take_batch("left", numbered(other, 0, 5), now=0)
    run.take_silence("left", silence(other, 5, is_idle=False, before_us=FINISHED_US), now=0)
    run.tick(now=0)
    assert run.watermark_us == 11 * SECOND, "who has finished is not waited for"
    run.take_silence("left", silence(LEFT, 12, is_idle=False, before_us=FINISHED_US), now=0)
    effects, _ = run.tick(now=0)
    (closed,) = [each.watermark_us for each in effects if isinstance(each, FeedRun)]
    assert closed is not None
    assert 11 * SECOND < closed <= 16 * SECOND, "the end of the last window that holds a row"
    effects, _ = run.take_batch("left", numbered(LEFT, 30, 1), now=0)
    assert len(rows_of(effects)) == 1, "it publishes again, in a later window"


def test_a_relay_hands_on_what_the_state_elsewhere_needs():
    """Not what it has itself: the next attempt would begin without the state."""
    relay = run_of(JOIN, worker=WORKER)
    progress = Progress((reach("l", LEFT, 9),), (reach("l", LEFT, 4),))
    rows = encode_rows(relay.sources[""].columns, [(1, 2, at(1))])
    _, (results,) = relay.take_flow("", flow(rows, 1, progress), now=0)
    assert results.rows == [(1, 2)]
    assert (relay.reached.covers, relay.reached.lows) == (progress.covers, progress.lows)


def test_a_flow_in_parts_covers_nothing_until_its_last():
    relay = run_of(JOIN, worker=WORKER)
    rows = encode_rows(relay.sources[""].columns, [(1, 2, at(1))])
    _, (first,) = relay.take_flow("", flow(rows, 1, Progress(), is_whole=False), now=0)
    assert first.reached is None
    _, (last,) = relay.take_flow("", flow(rows, 1, Progress((reach("l", LEFT, 9),)), sequence=1), now=0)
    assert last.reached == relay.reached


def test_lows_follow_what_is_out_not_what_is_in():
    run = run_of(JOIN)
    for upto in range(20):
        run.take_batch("l", numbered(LEFT, upto, 1), now=0)
        run.take_batch("r", numbered(RIGHT, upto, 1), now=0)
    (results,) = run.finished(10, [])
    assert results.progress.lows == (reach("l", LEFT, 1), reach("r", RIGHT, 1)), "at second 4, of windows of 3 s"
    (results,) = run.finished(30, [])
    assert results.progress.lows == (reach("l", LEFT, 11), reach("r", RIGHT, 11)), "at second 14"


def test_a_row_that_comes_too_late_for_every_window_is_counted_and_left_out():
    run = run_of("SELECT count(*) AS n FROM left [RANGE 10 SECONDS SLIDE 10 SECONDS]", engine="spark")
    run.take_batch("left", numbered(LEFT, 21, 11), now=0)  # Up to second 31.
    late = [(number, 1, at(second)) for number, second in enumerate((1, 20, 29))]
    effects, _ = run.take_batch("left", batch(LEFT, 32, *late, (9, 1, at(30))), now=0)
    assert [row[0] for row in rows_of(effects)] == [9], "its window ends at second 40"
    (status,) = run.status(7, now=0).inputs
    assert (status.rows, status.late) == (12, 3), "of 15 rows"


def test_a_row_between_two_windows_is_not_late():
    run = run_of("SELECT count(*) AS n FROM left [RANGE 2 SECONDS SLIDE 10 SECONDS]", engine="spark")
    run.take_batch("left", numbered(LEFT, 40, 1), now=0)
    effects, _ = run.take_batch("left", batch(LEFT, 41, (1, 1, at(33)), (2, 1, at(29))), now=0)
    assert [row[0] for row in rows_of(effects)] == [1], "no window has it"
    assert run.status(7, now=0).inputs[0].late == 1


def test_a_row_without_a_time_is_of_when_it_was_published():
    schema = Schema.parse("number int, at timestamp null")
    plan = parse("SELECT count(*) AS n FROM s [RANGE 2 SECONDS]", {"s": Stream("s", schema, "at")}).plan
    (subgraph,) = cut("q.1", plan, 7, {}, PROXY, PROXY, "spark").subgraphs
    run = SubgraphRun(deploy_of(subgraph), "q.1.0~1", now=0)
    effects, _ = run.take_batch("s", Batch(LEFT, 0, 1, 5000 << COUNT_BITS, schema.encode([(1, None)])), now=0)
    assert rows_of(effects) == [(1, None, EPOCH + timedelta(seconds=5))]


@pytest.mark.parametrize(
    ("text", "engine"),
    [("SELECT number FROM s", "auto"), ("SELECT count(*) AS n FROM s [RANGE 2 SECONDS]", "spark")],
    ids=["inline", "spark"],
)
def test_rows_with_decimals_that_an_earlier_release_accepted_are_left_out_and_counted(text: str, engine: str):
    schema = Schema.parse("number int, price decimal, spot record(height decimal null) null")
    plan = parse(text, {"s": Stream("s", schema)}).plan
    (subgraph,) = cut("q.1", plan, 7, {}, PROXY, PROXY, engine).subgraphs
    run = SubgraphRun(deploy_of(subgraph), "q.1.0~1", now=0)
    one, small = Decimal("1.50"), Decimal("1E-50")
    rows = schema.encode(
        [(1, one, None), (2, small, None), (3, one, (Decimal("9" * 38),)), (4, Decimal("1E+9000"), None)]
    )
    effects, results = run.take_batch("s", Batch(LEFT, 0, 4, 5000 << COUNT_BITS, rows), now=0)
    left = [row[0] for each in results for row in each.rows] if run.is_inline else [row[0] for row in rows_of(effects)]
    assert left == [1]
    (status,) = run.status(7, now=0).inputs
    assert (status.rows, status.unfit) == (1, 3)
    assert run.to_acknowledge == ({"s": {LEFT: Position(LEFT, 4)}} if run.is_inline else {})


def test_rows_that_are_gone_are_passed_over_and_counted():
    run = run_of(SELECT, resume=Progress((reach("left", LEFT, 4),), (reach("left", LEFT, 4),)))
    _, (results,) = run.take_gap("left", Missed(origin=LEFT, first=4, next=9), now=0)
    assert results.reached is not None
    assert results.reached.covers == (reach("left", LEFT, 9),)
    assert run.to_acknowledge == {"left": {LEFT: Position(LEFT, 9)}}
    assert run.status(7, now=0).inputs[0].missed == 5


def test_old_rows_that_are_gone_have_had_their_effect():
    run = run_of(JOIN, resume=Progress((reach("l", LEFT, 9),)))
    effects, _ = run.take_gap("l", Missed(origin=LEFT, first=0, next=12), now=0)
    assert [each.rows for each in effects if isinstance(each, FeedRun)] == [()]
    assert run.status(7, now=0).inputs[0].missed == 3
    assert [each.reached is not None for each in run.finished(1, [])] == [True]


def test_time_goes_on_between_two_flows_without_forgetting_the_first():
    run = run_of(JOIN, publishers=PUBLISHERS)
    columns = run.sources["l"].columns
    for sequence, alias in enumerate(("l", "r")):
        rows = encode_rows(columns, [(1, 1, at(1))])
        run.take_flow(alias, flow(rows, 1, Progress((), (), SECOND, SECOND), sequence=0), now=0)
        assert run.finished(sequence + 1, []) != []
    run.clocks["l"].reported = run.clocks["r"].reported = Progress((), (), 2 * SECOND, 2 * SECOND)
    effects, _ = run.tick(now=1)
    assert [each.watermark_us for each in effects if isinstance(each, FeedRun)] == [2 * SECOND]
    run.finished(3, [])
    assert run.to_acknowledge == {"l": 1, "r": 1}


def test_a_maker_that_hears_rows_again_is_not_silent_any_more():
    run = run_of(SELECT, number=1, publishers=PUBLISHERS)
    run.take_batch("left", numbered(LEFT, 0, 1), now=0)
    run.take_silence("left", silence(LEFT, 1), now=0)
    _, (silent,) = run.tick(now=0)
    assert silent.progress.is_idle
    _, (heard,) = run.take_batch("left", numbered(LEFT, 1, 1), now=0)
    assert not heard.progress.is_idle


def test_rows_between_subgraphs_are_encoded_by_position():
    columns = run_of(JOIN, publishers=PUBLISHERS).sources["l"].columns
    rows = [(1, 2, at(3)), (4, 5, at(6))]
    assert decode_rows(columns, encode_rows(columns, rows)) == rows


def test_a_stream_that_may_be_about_to_speak_holds_the_watermark_back():
    run = run_of(JOIN)
    effects, _ = run.take_batch("l", numbered(LEFT, 0, 1), now=0)
    assert [each.watermark_us for each in effects if isinstance(each, FeedRun)] == [None]
    run.take_silence("r", silence(RIGHT, 0), now=0)
    effects, _ = run.tick(now=0)
    assert [each.watermark_us is not None for each in effects if isinstance(each, FeedRun)] == [True], "it is silent"
