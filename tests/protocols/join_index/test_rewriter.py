"""A rewriter among peers that crash: what it reads, sends on and reports, and what ends an attempt."""

from __future__ import annotations

from decimal import Decimal

import pytest

from protocols.delivery.messages import Batch, Origin, Position, Rows
from protocols.effects import Effect, Send
from protocols.errors import RemoteProtocolError
from protocols.ids import Millis
from protocols.inside import Inside
from protocols.join_index.heavy import evaluators_of
from protocols.join_index.keys import value_key, value_text
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    Covered,
    IndexQuery,
    JoinQuery,
    KeepQueries,
    Parcel,
    QueryIndexed,
    QueryLost,
    QueryRefused,
    Receipt,
    RemoveQuery,
    SentBy,
    SentTo,
)
from protocols.join_index.parcels import RESEND_MS
from protocols.join_index.rewriter import LEASE_MS, RELEASED_MS, SILENT_MS, Rewriter
from protocols.wire import MESSAGES
from queries import sql
from queries.catalogue import Stream
from queries.schema import Schema
from tests.protocols.join_index.rewriting import opened, parcels, posed
from tests.protocols.join_index.things import (
    EVALUATOR,
    PUBLISHER,
    REWRITER,
    S_E,
    STREAMS,
    SUBSCRIBER,
    query,
)

LIMITS = JoinLimits()
ORIGIN = Origin(PUBLISHER, "R", 1)
LIFE = 100


def rows(*values: int, first: int = 0, at: int = 1) -> Rows:
    schema = STREAMS["R"].schema
    batch = Batch(ORIGIN, first, len(values), at << 16, schema.encode([(n, n) for n in values]))
    return Rows(batches=(batch,))


def covers_of(effects: list[Effect]) -> list[Covered]:
    return [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Covered)]


def test_what_is_read_is_covered_once_everything_of_it_is_unpacked():
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    request = opened(rewriter, posed())
    sent = parcels(rewriter.answered(request, rows(7, 8, 9, 10), now=1))
    places = {
        value: evaluators_of(value_key(S_E, value_text(value)), (EVALUATOR, REWRITER))[0] for value in (7, 8, 9, 10)
    }
    assert {each.peer for each in sent} == set(places.values())
    loads = [each for send in sent for each in send.message.loads]  # type: ignore[attr-defined]
    assert sorted(sequence for each in loads for sequence in each.sequences) == [0, 1, 2, 3]
    (report,) = covers_of(rewriter.sweep(2))
    assert (report.tuples, report.messages, report.covers) == (4, 4, ())
    for each in sent:
        assert isinstance(each.message, Parcel)
        numbers = (SentTo(SUBSCRIBER, 0, 3),)
        rewriter.receipt(each.peer, Receipt(number=each.message.number, life=LIFE, sent=numbers), now=3)
    (report,) = covers_of(rewriter.sweep(4))
    assert report.covers == (Position(ORIGIN, 4),)
    assert {each.peer: each for each in report.sent} == {each.peer: SentBy(each.peer, LIFE, 3) for each in sent}


def test_tuples_with_decimals_that_an_earlier_release_accepted_go_to_no_evaluator_and_are_counted():
    schema = Schema.parse("a decimal, b decimal")
    known = {name: Stream(name, schema) for name in ("R", "S")}
    plan = sql.plan("SELECT R.a AS a, S.a AS other FROM R, S WHERE R.b = S.b", known).plan
    message = IndexQuery(
        query=JoinQuery("q~1", SUBSCRIBER, 0, "sai", plan, 3_600_000),
        side=0,
        replica=0,
        rewrites=True,
        evaluators=(EVALUATOR, REWRITER),
    )
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    request = opened(rewriter, message)
    texts = (("1", "7.00"), ("1", "1E+9000"), ("1E-50", "7"), ("2", "7.0"))
    batch = Batch(ORIGIN, 0, 4, 1 << 16, schema.encode([(Decimal(a), Decimal(b)) for a, b in texts]))
    sent = parcels(rewriter.answered(request, Rows(batches=(batch,)), now=1))
    loads = [each for send in sent for each in send.message.loads]  # type: ignore[attr-defined]
    assert [(each.sequences, each.values) for each in loads] == [((0, 3), ("n7", "n7"))]
    (report,) = covers_of(rewriter.sweep(2))
    assert (report.tuples, report.unfit) == (4, 2)


def test_a_parcel_is_sent_again_until_there_is_a_receipt():
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    request = opened(rewriter, posed())
    (sent,) = parcels(rewriter.answered(request, rows(7), now=1))
    assert sent in rewriter.sweep(1 + RESEND_MS)


def test_a_parcel_waits_only_for_queries_that_are_still_on_their_way(monkeypatch: pytest.MonkeyPatch):
    """Of three readings the one between has ended: its parcel may never have arrived, the first one's still will."""
    monkeypatch.setattr("protocols.join_index.reader.RECENT_BYTES", 0)
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    (first,) = parcels(rewriter.answered(opened(rewriter, posed()), rows(7, at=10), now=10))
    (second,) = parcels(rewriter.answered(opened(rewriter, posed("q2~1", at=5)), rows(7, at=10), now=10))
    (third,) = parcels(rewriter.answered(opened(rewriter, posed("q3~1", at=3)), rows(7, at=10), now=10))
    assert isinstance(first.message, Parcel)
    assert isinstance(second.message, Parcel)
    assert isinstance(third.message, Parcel)
    assert first.peer == second.peer == third.peer
    assert (second.message.after, third.message.after) == (first.message.number, second.message.number)
    rewriter.remove(SUBSCRIBER, RemoveQuery(query="q2~1"), now=11)
    assert after_again(rewriter, 10 + RESEND_MS) == {
        first.message.number: 0,
        third.message.number: first.message.number,
    }
    rewriter.remove(SUBSCRIBER, RemoveQuery(query="q~1"), now=11)
    assert after_again(rewriter, 10 + 2 * RESEND_MS) == {third.message.number: 0}


def after_again(rewriter: Rewriter, now: Millis) -> dict[int, int]:
    """What the parcels wait for that are sent again."""
    again = [send.message for send in parcels(rewriter.sweep(now))]
    return {each.number: each.after for each in again if isinstance(each, Parcel) and each.loads}


def test_a_large_batch_goes_in_several_parcels_and_a_tuple_that_fits_none_ends_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("protocols.join_index.reader.PIECE_BYTES", 10)
    monkeypatch.setattr("protocols.join_index.parcels.PARCEL_BYTES", 1)
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    request = opened(rewriter, posed())
    sent = parcels(rewriter.answered(request, rows(*[7] * 8), now=1))
    assert [len(load.sequences) for each in sent for load in each.message.loads] == [3, 3, 2]  # type: ignore[attr-defined]
    assert [len(each.message.queries) for each in sent] == [1, 0, 0, 0]  # type: ignore[attr-defined]
    monkeypatch.setattr("protocols.join_index.reader.TUPLE_BYTES_MAX", 2)
    lost = rewriter.answered(request, rows(*[7] * 8, first=8), now=1)
    reason = "a tuple of 3 bytes is too large for the join index"
    assert lost[0] == Send(SUBSCRIBER, QueryLost(query="q~1", reason=reason))


def test_an_evaluator_in_another_life_or_silent_or_full_ends_the_attempt():
    def read() -> tuple[Rewriter, Send, int]:
        rewriter = Rewriter(REWRITER, LIMITS, Inside())
        request = opened(rewriter, posed())
        (sent,) = parcels(rewriter.answered(request, rows(7), now=1))
        assert isinstance(sent.message, Parcel)
        rewriter.receipt(sent.peer, Receipt(number=sent.message.number, life=LIFE), now=1)
        return rewriter, sent, request

    rewriter, sent, _ = read()
    restarted = rewriter.receipt(sent.peer, Receipt(number=0, life=LIFE + 1), now=2)
    level_2, sent_2, _ = read()
    silent = level_2.sweep(2 + SILENT_MS)
    level_3, _, request_3 = read()
    (more,) = parcels(level_3.answered(request_3, rows(7, first=1), now=2))
    assert isinstance(more.message, Parcel)
    full = level_3.receipt(more.peer, Receipt(number=more.message.number, life=LIFE, refused="full"), now=2)
    for effects, reason, culprit in (
        (restarted, f"peer {sent.peer.short} was restarted", None),
        (silent, f"peer {sent_2.peer.short} was silent for 6 s", sent_2.peer),
        (full, "full", None),
    ):
        assert Send(SUBSCRIBER, QueryLost(query="q~1", reason=reason, culprit=culprit)) in effects
    assert not rewriter.readers
    assert rewriter.keep(SUBSCRIBER, KeepQueries(queries=(("q~1", 0, 0),)), now=3) == [
        Send(SUBSCRIBER, QueryLost(query="q~1", reason=f"peer {REWRITER.short} has forgotten it"))
    ]


def test_queries_share_a_reading_and_what_one_missed_is_done_again_for_it():
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    request = opened(rewriter, posed())
    (first,) = parcels(rewriter.answered(request, rows(7, at=10), now=10))
    (reader,) = rewriter.readers.values()
    young = rewriter.index(SUBSCRIBER, posed("q2~1", at=11), now=11)
    assert young == [
        Send(SUBSCRIBER, QueryIndexed(query="q2~1", side=0, replica=0, reader=reader.name, report=reader.report + 1))
    ]
    (again,) = rewriter.index(SUBSCRIBER, posed("q3~1", at=10), now=11)
    assert isinstance(again, Send)
    assert isinstance(again.message, Parcel)
    assert isinstance(first.message, Parcel)
    assert again.message.loads == first.message.loads, "it wants the tuple that was read"
    assert [each.id for each in again.message.queries] == ["q2~1", "q3~1"]
    assert again.message.after == first.message.number
    assert rewriter.receipt(again.peer, Receipt(number=again.message.number, life=LIFE), now=12) == []
    done = rewriter.receipt(first.peer, Receipt(number=first.message.number, life=LIFE), now=12)
    indexed = [each.message for each in done if isinstance(each, Send) and isinstance(each.message, QueryIndexed)]
    assert [(each.query, each.report) for each in indexed] == [("q3~1", 1)]
    assert len(rewriter.readers) == 1
    rewriter.validate()


def test_a_query_of_long_ago_reads_for_itself_until_it_has_caught_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("protocols.join_index.reader.RECENT_BYTES", 0)
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    request = opened(rewriter, posed())
    received_all(rewriter, rewriter.answered(request, rows(7, at=10), now=10))
    late = opened(rewriter, posed("q2~1", at=5))
    assert len(rewriter.readers) == 2
    rewriter.sweep(11)
    assert len(rewriter.readers) == 2, "it has not read what the other has"
    received_all(rewriter, rewriter.answered(late, rows(7, at=10), now=11))
    effects = rewriter.sweep(12)
    (reader,) = rewriter.readers.values()
    assert reader.request == request
    indexed = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, QueryIndexed)]
    assert [(each.query, each.reader) for each in indexed] == [("q2~1", reader.name)]
    assert [each.report for each in covers_of(effects)] == [indexed[0].report]
    rewriter.validate()


def received_all(rewriter: Rewriter, effects: list[Effect]) -> None:
    for each in parcels(effects):
        assert isinstance(each.message, Parcel)
        rewriter.receipt(each.peer, Receipt(number=each.message.number, life=LIFE), now=11)


def test_a_query_without_a_lease_or_removed_is_read_for_no_longer():
    for end in ("lease", "removal"):
        rewriter = Rewriter(REWRITER, LIMITS, Inside())
        opened(rewriter, posed())
        if end == "lease":
            rewriter.sweep(LEASE_MS + 1)
        else:
            rewriter.remove(SUBSCRIBER, RemoveQuery(query="q~1"), now=1)
        assert not rewriter.readers
        (refused,) = rewriter.index(SUBSCRIBER, posed(), now=LEASE_MS + 2)
        assert isinstance(refused, Send)
        assert isinstance(refused.message, QueryLost), "evaluators are being told to forget it"
        rewriter.sweep(LEASE_MS + RELEASED_MS + 2)
        assert rewriter.is_empty()


def test_a_subscriber_hears_what_was_forgotten_without_its_word():
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    opened(rewriter, posed())
    rewriter.index(SUBSCRIBER, posed("q2~1"), now=LEASE_MS)
    (report,) = covers_of(rewriter.sweep(LEASE_MS + 1))
    assert report.forgotten == ("q~1",)
    rewriter.remove(SUBSCRIBER, RemoveQuery(query="q~1"), now=LEASE_MS + 2)
    (report,) = covers_of(rewriter.sweep(LEASE_MS + 3))
    assert report.forgotten == ()


def test_a_query_is_refused_where_there_is_no_room_or_no_evaluator():
    full = Rewriter(REWRITER, JoinLimits(queries_max=0), Inside())
    (effect,) = full.index(SUBSCRIBER, posed(), now=0)
    assert effect == Send(
        SUBSCRIBER, QueryRefused(query="q~1", reason=f"peer {REWRITER.short} has 0 join queries already")
    )
    nobody = IndexQuery(query=query(name="q~1"), side=0, replica=0)
    (effect,) = Rewriter(REWRITER, LIMITS, Inside()).index(SUBSCRIBER, nobody, now=0)
    assert effect == Send(SUBSCRIBER, QueryRefused(query="q~1", reason="it names no evaluators"))


def test_a_peer_does_not_understand_a_query_of_an_algorithm_that_only_experiments_run():
    with pytest.raises(RemoteProtocolError, match="cells"):
        MESSAGES.decode(MESSAGES.encode(posed(algorithm="cells")))
