"""Bugs planted into what runs queries: their results and hosts, and joins through the index."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgspec

from protocols.catalogue.shares import PublisherShare
from protocols.delivery.messages import Origin, Publishers
from protocols.effects import AfterSync, Append, Effect, Tell
from protocols.events import Event
from protocols.execution.aggregation import Aggregations, WindowRun
from protocols.execution.executor import Executor
from protocols.execution.messages import ResultsNoted
from protocols.execution.progress import InputClock
from protocols.execution.proxy import QueryProxy
from protocols.execution.results import QueryResults
from protocols.execution.run import SubgraphRun
from protocols.execution.submitted import SubmittedQuery
from protocols.ids import Millis, PeerId
from protocols.join_index.attempt import JoinAttempt
from protocols.join_index.condition import Meeting
from protocols.join_index.evaluator import Evaluator
from protocols.join_index.messages import LEFT, Covered, IndexQuery
from protocols.join_index.rewriter import Rewriter
from protocols.join_index.stays import Stays
from protocols.join_index.subscriber import Subscriber
from protocols.messages import Record
from protocols.subgraphs import Progress, Reach, ResultsReady, Vector, merged
from queries import slices
from queries.plan import Operator
from tests.sim.bugs import Patch, bug


@bug("queries", seeds=60)
def silence_is_what_the_reader_believes() -> Patch:
    """A publisher counts as silent if nothing of it has come for 2 s, though it may have much that is not read yet."""
    active = InputClock._active

    def believe(clock: InputClock, now: Millis) -> dict[Origin, Any]:
        return {origin: heard for origin, heard in active(clock, now).items() if now - heard.at < 2000}

    return patch.object(InputClock, "_active", believe)


@bug("queries", seeds=60)
def a_publisher_is_waited_for_once_it_was_heard() -> Patch:
    """The catalogue lists it, but nobody waits for its first row."""

    def meet_nobody(clock: InputClock, publishers: Publishers, now: Millis) -> None:
        clock.is_listed = True

    return patch.object(InputClock, "meet", meet_nobody)


@bug("query-restarts", seeds=60)
def covered_before_it_is_safe() -> Patch:
    """What results cover is noted when they are made, not when they reach their stream."""
    handle = SubmittedQuery.handle

    def note_at_once(query: SubmittedQuery, event: Event, now: Millis) -> list[Effect]:
        effects = handle(query, event, now)
        is_ours = isinstance(event, ResultsReady) and query._attempt(event.attempt) is not None
        if is_ours and event.progress is not None:
            progress = merged(query.results.resume, event.progress)
            effects.append(Append(ResultsNoted(query=query.name, next=query.results.count, progress=progress)))
        return effects

    return patch.object(SubmittedQuery, "handle", note_at_once)


@bug("query-restarts", seeds=100)
def results_before_their_note() -> Patch:
    """Results are written before the note of what they are made of: a crash may keep one without the other."""
    publish = SubmittedQuery._publish

    def swap(query: SubmittedQuery, now: Millis) -> list[Effect]:
        effects = publish(query, now)
        match effects:
            case [Append() as note, Tell() as asked]:
                return [asked, AfterSync((note,))]
        return effects

    return patch.object(SubmittedQuery, "_publish", swap)


@bug("queries", seeds=20)
def notes_of_results_forgotten_at_restart() -> Patch:
    """A proxy that comes back does not know what the results of its queries are made of."""
    restore = QueryProxy.restore

    def forget(proxy: QueryProxy, record: Record, logs: Any) -> None:
        if not isinstance(record, ResultsNoted):
            restore(proxy, record, logs)

    return patch.object(QueryProxy, "restore", forget)


@bug("query-restarts", seeds=100)
def a_note_without_its_results() -> Patch:
    """A note survives a crash that its results did not, and is believed."""
    restart = SubmittedQuery._restart

    def believe(query: SubmittedQuery, now: Millis) -> None:
        query.results.notes = [msgspec.structs.replace(note, next=0) for note in query.results.notes]
        restart(query, now)

    return patch.object(SubmittedQuery, "_restart", believe)


@bug("queries", seeds=20)
def a_resumed_attempt_without_its_state() -> Patch:
    """The next attempt reads on where results ended, whatever its state would need of before."""
    begin_attempt = QueryResults.begin_attempt

    def forget(results: QueryResults) -> Progress:
        resume = begin_attempt(results)
        return msgspec.structs.replace(resume, lows=resume.covers)

    return patch.object(QueryResults, "begin_attempt", forget)


@bug("queries", seeds=20)
def old_rows_taken_for_new() -> Patch:
    """Rows that are read again for the state make their results again."""
    return patch.object(SubgraphRun, "_covered", property(lambda run: Vector(), lambda run, vector: None), create=True)


@bug("queries", seeds=400)
def lows_of_the_latest_floor() -> Patch:
    """What state needs is reckoned from the input that has come furthest, not from the one furthest behind."""
    advance = SubgraphRun._advance

    def hurry(run: SubgraphRun, now: Millis) -> bool:
        moved = advance(run, now)
        run.floor_us = max(
            (clock.floor_us for clock in run.clocks.values() if clock.floor_us is not None), default=None
        )
        return moved

    return patch.object(SubgraphRun, "_advance", hurry)


@bug("queries", seeds=60)
def an_edge_of_windows_off_by_one() -> Patch:
    """A tuple at the very beginning of a window counts in the slice before it."""
    slice_of = slices._Span.slice_of
    return patch.object(slices._Span, "slice_of", lambda span, time_us: slice_of(span, time_us - 1))


@bug("queries", seeds=60)
def a_slice_dropped_too_soon() -> Patch:
    """A slice is let go with the first window that it is in, not with the last."""
    return patch.object(slices._Span, "last_end", lambda span, time_us: span.first_end(time_us))


@bug("query-restarts", seeds=60)
def windows_told_again() -> Patch:
    """An attempt does not know which windows the one before has told."""
    enter = Aggregations.enter

    def begin(aggregations: Aggregations, name: str, plan: Operator, closed: int | None, views: Any) -> WindowRun:
        return enter(aggregations, name, plan, None, views)

    return patch.object(Aggregations, "enter", begin)


@bug("queries", seeds=20)
def a_lost_host_not_missed() -> Patch:
    """A query whose host is gone goes on as if it were there."""
    return patch.object(SubmittedQuery, "host_lost", lambda query, peer, why, now: [])


@bug("queries", seeds=30)
def flows_not_sent_again() -> Patch:
    """Rows on their way from one subgraph to the next are sent once."""
    return patch.object(Executor, "_resend", lambda executor, hosted, now: [])


@bug("queries", seeds=20)
def a_relay_speaks_for_the_state() -> Patch:
    """A subgraph without state says that nothing of before is needed, though another one's state needs it."""
    finished = SubgraphRun.finished

    def forget(run: SubgraphRun, number: int, rows: Any) -> Any:
        results = finished(run, number, rows)
        if not run.is_stateful:
            run.reached = msgspec.structs.replace(run.reached, lows=run.reached.covers)
            results = [msgspec.structs.replace(each, reached=each.reached and run.reached) for each in results]
        return results

    return patch.object(SubgraphRun, "finished", forget)


@bug("queries", seeds=180)
def one_place_for_two_sources() -> Patch:
    """How far a stream was read is kept for the stream, though two sources of a query read it."""
    of = Vector.of

    def of_streams(reaches: tuple[Reach, ...]) -> Vector:
        furthest: dict[Origin, int] = {}
        for each in reaches:
            furthest[each.origin] = max(each.next, furthest.get(each.origin, 0))
        return of(tuple(msgspec.structs.replace(each, next=furthest[each.origin]) for each in reaches))

    return patch.object(Vector, "of", of_streams)


@bug("apart", seeds=40)
def an_inner_join_tells_only_what_is_new() -> Patch:
    """What old rows made of each other is missing from the state of the next join."""
    init = SubgraphRun.__init__

    def forget(run: SubgraphRun, deploy: Any, run_id: str, now: Millis) -> None:
        init(run, deploy, run_id, now)
        feed = run._feed

        def feed_as_it_is(alias: str, rows: Any, is_new: bool, *more: Any) -> Any:
            effects, results = feed(alias, rows, is_new, *more)
            return [msgspec.structs.replace(each, is_new=is_new) for each in effects], results

        run._feed = feed_as_it_is  # type: ignore[method-assign]

    return patch.object(SubgraphRun, "__init__", forget)


@bug("apart", seeds=40)
def old_pairs_taken_for_new() -> Patch:
    """The next join feeds all that an inner one makes as new."""
    take_flow = SubgraphRun.take_flow

    def take_all(run: SubgraphRun, alias: str, flow: Any, now: Millis) -> Any:
        run._mixed = []
        return take_flow(run, alias, flow, now)

    return patch.object(SubgraphRun, "take_flow", take_all)


# Joins through the index.


@bug("join-restarts", seeds=60)
def covered_though_results_are_missing() -> Patch:
    """How far both sides are is believed before the results of it are here."""
    covered = Subscriber.covered

    def believe(queries: Subscriber, sender: PeerId, message: Covered, now: Millis) -> list[Effect]:
        sent = tuple(msgspec.structs.replace(each, sequence=0) for each in message.sent)
        return covered(queries, sender, msgspec.structs.replace(message, sent=sent), now)

    return patch.object(Subscriber, "covered", believe)


@bug("join-restarts", seeds=40)
def a_restarted_evaluator_takes_itself_for_the_same() -> Patch:
    """An evaluator that has lost everything says nothing of it."""

    def forget(evaluator: Evaluator, now: Millis) -> None:
        evaluator.life = 1

    return patch.object(Evaluator, "begin", forget)


@bug("join-sai", seeds=40)
def parcels_not_sent_again() -> Patch:
    """What goes to an evaluator is sent once."""
    carry = Rewriter._carry

    def once(rewriter: Rewriter, reader: Any, dispatch: Any, parts: Any, now: Millis) -> list[Effect]:
        effects = carry(rewriter, reader, dispatch, parts, now)
        rewriter._parcels._carried.clear()
        dispatch.parcels = 0
        return effects

    return patch.object(Rewriter, "_carry", once)


@bug("join-restarts", seeds=40)
def pairs_of_before_told_again() -> Patch:
    """The next attempt tells pairs that the last one had covered."""
    return patch.object(Meeting, "has_covered", lambda meeting, side, origin, sequence: False)


@bug("join-restarts", seeds=30)
def covered_before_the_state_is_back() -> Patch:
    """The next attempt says how far it is though tuples that the last one had are still to be read again."""
    return patch.object(JoinAttempt, "has_caught_up", lambda attempt, now: True)


@bug("join-windows", seeds=10)
def tuples_too_late_pass_unnoticed() -> Patch:
    """A tuple whose partners were let go, for they were out of their windows, is taken as if nothing were missing."""
    return patch.object(Stays, "late", lambda stays, shelf, wall, groups: [])


@bug("join-skew", seeds=10)
def one_side_does_not_know_of_heavy_values() -> Patch:
    """The rewriter of the right side takes all values for light ones."""
    index = Rewriter.index

    def ignorant(rewriter: Rewriter, sender: PeerId, message: IndexQuery, now: Millis) -> list[Effect]:
        heavy = message.heavy if message.side == LEFT else ()
        return index(rewriter, sender, msgspec.structs.replace(message, heavy=heavy), now)

    return patch.object(Rewriter, "index", ignorant)


@bug("join-replicas", seeds=10)
def two_replicas_read_one_share() -> Patch:
    """All replicas of a rewriter read the share of the first, and nobody the others."""
    return patch.object(PublisherShare, "has", lambda share, publisher: publisher.number % share.of == 0)
