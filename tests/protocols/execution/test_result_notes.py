"""The notes of a query's results: whatever was refused or lost on the way, they say what is in the stream."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from protocols.effects import Append
from protocols.execution.messages import ResultsNoted
from protocols.execution.results import NOTE_MS, QueryResults
from protocols.subgraphs import Progress, digest_of, digests_of
from queries.schema import Row, Schema
from tests.protocols.execution.parts import LEFT, reach

SCHEMA = Schema.parse("n int")
BYTES_MAX = 12  # A few rows: some groups go in parts.

STEPS = st.sampled_from(["rows", "rows", "many", "covered", "nothing", "told", "told", "refused", "anew", "again"])


def begun() -> QueryResults:
    return QueryResults("q", "q", SCHEMA)


def state(results: QueryResults) -> tuple[Progress, Counter[bytes]]:
    return results.resume, Counter(results.beyond)


def test_a_note_without_progress_says_only_what_it_adds():
    results = begun()
    journal = list[ResultsNoted]()
    for numbers in ([1], [2, 3]):
        results.add([(number,) for number in numbers], None)
        note, _ = results.next_batch(1000) or (None, ())
        assert note is not None
        journal.append(note)
        results.settle(results.mark_published())
    assert [(note.adds_to, len(note.beyond)) for note in journal] == [(None, 1), (1, 2)]
    again = begun()
    again.notes = journal
    again.restart(3)
    assert again.beyond == [digest_of(SCHEMA, (number,)) for number in (1, 2, 3)]


def test_results_that_were_refused_are_not_among_those_told_when_others_took_their_place():
    results = begun()
    journal = list[ResultsNoted]()

    def next_note() -> None:
        note, _ = results.next_batch(1000) or (None, ())
        assert note is not None
        journal.append(note)

    results.add([(1,)], None)
    next_note()
    results.settle(results.mark_published())
    results.add([(2,)], None)
    next_note()
    results.mark_refused()
    results.end_attempt()
    results.begin_attempt()
    results.add([(3,)], None)
    next_note()
    results.settle(results.mark_published())
    again = begun()
    again.notes = journal
    again.restart(2)
    assert again.beyond == [digest_of(SCHEMA, (number,)) for number in (1, 3)]


@given(st.lists(STEPS, max_size=40), st.booleans())
def test_after_a_restart_the_notes_tell_what_is_in_the_stream(steps: list[str], arrived: bool):
    results, journal = begun(), list[ResultsNoted]()
    safe = {0: state(results)}
    number = 0
    told: list[Row] = []

    now = 0

    def publish() -> None:
        effects, _ = results.publish(1, BYTES_MAX, now)
        notes = [effect.record for effect in effects if isinstance(effect, Append)]
        journal.extend(note for note in notes if isinstance(note, ResultsNoted))
        if notes and results.in_flight is None:
            safe[results.count] = state(results)

    for step in steps:
        now += NOTE_MS // 3
        match step:
            case "rows" | "many":
                count = 1 if step == "rows" else 7
                rows = [(number + each,) for each in range(count)]
                number += count
                known = digests_of(SCHEMA.encode(rows)) if number % 2 else ()
                results.add(rows, None, known)
                told += rows
            case "covered":
                results.add([], Progress((reach("left", LEFT, number),)), tuple(digest_of(SCHEMA, row) for row in told))
            case "nothing":
                results.add([], Progress((reach("left", LEFT, number + 1),)))
                told.clear()
            case "told" if results.in_flight is not None:
                results.settle(results.mark_published())
                safe[results.count] = state(results)
            case "refused" if results.in_flight is not None:
                results.mark_refused()
            case "anew" if results.in_flight is None:
                results.end_attempt()
                results.begin_attempt()
                told.clear()
            case "again" if told and results.in_flight is None:
                results.end_attempt()
                results.begin_attempt()
                results.add(list(told), None)
        publish()
        results.validate()
    count = results.count
    if arrived and results.in_flight is not None:  # The peer crashes before it hears that they are in the stream.
        results.settle(results.mark_published())
        count = results.count
        safe[count] = state(results)
    again = begun()
    again.notes = journal
    again.restart(count)
    assert state(again) == safe[count]
    restored = begun()
    restored.notes = list(again.notes)
    restored.restart(count)
    assert state(restored) == safe[count], "a snapshot has what the journal had"
