"""Results at the proxy of their query, by hand: the notes of what they are made of, and no result twice."""

from __future__ import annotations

from itertools import count

import pytest

from protocols.delivery.messages import Publish
from protocols.events import (
    Answered,
)
from protocols.execution import submitted
from protocols.execution.results import NOTE_MS
from protocols.execution.shown import shown
from protocols.limits import Limits
from protocols.messages import Refused
from protocols.subgraphs import Progress, ResultsReady
from queries.schema import Schema
from tests.protocols.execution.parts import LEFT, NORTH, reach
from tests.protocols.execution.proxied import Proxy, running

UNAVAILABLE = Refused(code="unavailable", error="the network is torn")


def test_the_note_of_what_results_are_made_of_is_written_before_them():
    proxy, deploy = running()
    proxy.results(deploy, [1, 2], covers=4)
    (note,) = proxy.notes()
    assert (note.next, note.progress.covers, note.beyond) == (2, (reach("left", LEFT, 4),), ())
    assert proxy.safe == 0
    assert proxy.publish() == [1, 2]
    assert proxy.safe == 1


def test_results_that_come_while_others_are_written_go_together_after_them():
    proxy, deploy = running()
    for number in range(4):
        proxy.results(deploy, [number], covers=number + 1)
    assert proxy.publish() == [0]
    assert proxy.publish() == [1, 2, 3]
    assert proxy.notes()[-1].progress.covers == (reach("left", LEFT, 4),)
    assert proxy.safe == 4


def test_the_next_attempt_goes_on_behind_what_is_in_the_stream():
    proxy, deploy = running()
    proxy.results(deploy, [1], covers=1)
    proxy.publish()
    proxy.results(deploy, [2], covers=2)  # Never written.
    (publish,) = proxy.take(Publish)
    proxy.happen(Answered(publish, UNAVAILABLE, last=True))
    again = proxy.next_attempt()
    assert [each.resume.covers for each in again] == [(reach("left", LEFT, 1),)] * 2
    proxy.results(deploy, [7], covers=9)
    assert proxy.take(Publish) == [publish], "what comes of the attempt before is not wanted"


def test_a_refused_publish_leaves_no_note_in_memory_and_is_tried_later():
    proxy, deploy = running()
    for number in range(20):
        proxy.results(deploy, [number], covers=number + 1)
    for _ in range(8):
        proxy.answer(Publish, Refused(code="full", error="the disk is full", retry_after_ms=400))
        proxy.results(deploy, [99], covers=99)
        assert proxy.take(Publish) == [], "not before the time"
        assert proxy.proxy.queries["q"].results.notes == []
        proxy.tick()
    assert proxy.publish()[:20] == list(range(20))


def test_a_query_without_results_gets_on_and_says_so_now_and_then():
    proxy, deploy = running()
    proxy.results(deploy, [], covers=5)
    assert proxy.proxy.queries["q"].results.resume.covers == (reach("left", LEFT, 5),)
    first = len(proxy.notes())
    for upto in range(6, 60):
        proxy.results(deploy, [], covers=upto)
    assert len(proxy.notes()) == first, "not with every row"
    proxy.now += NOTE_MS
    proxy.results(deploy, [], covers=70)
    assert len(proxy.notes()) == first + 1
    proxy.start(proxy.journal)
    assert proxy.proxy.queries["q"].results.resume.covers == (reach("left", LEFT, 70),)


def test_results_whose_cover_cannot_be_said_are_remembered_until_it_can():
    proxy, deploy = running()
    proxy.results(deploy, [1], covers=None)
    proxy.publish()
    assert len(proxy.notes()[-1].beyond) == 1
    again = proxy.next_attempt()[0]
    proxy.results(again, [1, 2], covers=3)
    assert proxy.publish() == [2], "1 is in the stream already"
    assert proxy.notes()[-1].beyond == ()


def test_what_was_told_beyond_is_not_forgotten_before_it_is_made_again():
    """Attempt 1 tells 1; attempt 2 tells 2, which covers other rows, and is lost before it has made 1 again."""
    proxy, deploy = running()
    proxy.results(deploy, [1], covers=None)
    proxy.publish()
    second = proxy.next_attempt()[0]
    proxy.results(second, [2], covers=3)
    proxy.publish()
    third = proxy.next_attempt()[0]
    proxy.results(third, [1, 3], covers=4)
    assert proxy.publish() == [3]


def test_a_group_too_large_for_one_batch_is_told_in_parts_and_no_part_twice():
    proxy, deploy = running()
    numbers = list(range(1 << 60, (1 << 60) + 80_000))
    proxy.results(deploy, numbers, covers=5)
    first = proxy.publish()
    assert 0 < len(first) < len(numbers)
    (publish,) = proxy.take(Publish)
    proxy.happen(Answered(publish, UNAVAILABLE, last=True))
    del proxy.asked[publish]
    again = proxy.next_attempt()[0]
    assert again.resume.covers == ()
    proxy.results(again, numbers, covers=5)
    told = list(first)
    for _ in count():
        if not proxy.take(Publish):
            break
        told += proxy.publish()
    assert told == numbers
    assert proxy.notes()[-1].progress.covers == (reach("left", LEFT, 5),)


def test_a_part_that_was_refused_is_tried_again():
    proxy, deploy = running()
    numbers = list(range(1 << 60, (1 << 60) + 80_000))
    proxy.results(deploy, numbers, covers=5)
    proxy.answer(Publish, Refused(code="busy", error="not now", retry_after_ms=400))
    proxy.tick()
    told: list[int] = []
    while proxy.take(Publish):
        told += proxy.publish()
    assert told == numbers


def test_tiny_results_go_in_parts_that_a_stream_takes():
    """There are as many as one publish may have bytes, and more than it may have rows."""
    proxy, deploy = running()
    numbers = [0] * (3 * Limits().publish_rows_max)
    proxy.results(deploy, numbers, covers=5)
    told: list[int] = []
    while taken := proxy.take(Publish):
        command = proxy.asked[taken[0]]
        assert isinstance(command, Publish)
        assert command.count <= Limits().publish_rows_max
        told += proxy.publish()
    assert told == numbers


def test_a_result_that_no_stream_takes_is_dropped_and_counted():
    """XML of more than a stream's row may have: asking again would not help, and those behind it wait."""
    text = 'for $l in stream("left")/rows/row[part = 1] return <r> { $l/number } </r>'
    proxy = Proxy()
    deploys = proxy.begin(text, left=NORTH)
    proxy.host(deploys)
    large = "x" * (1 << 20)
    progress = Progress((reach("left", LEFT, 5),), (reach("left", LEFT, 5),))
    proxy.happen(ResultsReady(deploys[0].query, deploys[0].attempt, (("a",), (large,), ("b",)), progress))
    told: list[object] = []
    for _ in range(4):
        if not proxy.take(Publish):
            break
        command = proxy.asked[proxy.take(Publish)[0]]
        assert isinstance(command, Publish)
        if len(command.rows) > len(large):
            proxy.answer(Publish, Refused(code="invalid", error="a publish of 1048588 bytes is too large"))
            proxy.tick()
        else:
            told += proxy.publish()
    assert told == ["a", "b"]
    answer = shown(proxy.proxy.queries["q"])
    assert (answer.results, answer.dropped) == (2, 1)
    assert answer.dropped_for == "expected at most 1048576 bytes, got 1048583 bytes"
    assert proxy.notes()[-1].progress.covers == (reach("left", LEFT, 5),)


def test_a_query_of_another_release_keeps_the_columns_it_had_though_they_may_now_be_null(
    monkeypatch: pytest.MonkeyPatch,
):
    """A null that its stream does not take is counted."""
    proxy, _ = running()
    monkeypatch.setattr(submitted, "output_schema", lambda _: Schema.parse("number int null"))
    deploys = proxy.next_attempt()
    proxy.host(deploys)
    progress = Progress((reach("left", LEFT, 5),), (reach("left", LEFT, 5),))
    proxy.happen(ResultsReady(deploys[0].query, deploys[0].attempt, ((7,), (None,)), progress))
    proxy.answer(Publish, Refused(code="invalid", error='row 1, field "number": expected int of 64 bits, got null'))
    proxy.tick()
    assert proxy.publish() == [7]
    answer = shown(proxy.proxy.queries["q"])
    assert (answer.state, answer.dropped) == ("running", 1)
    assert answer.dropped_for == 'row 0, field "number": expected int of 64 bits, got null'
