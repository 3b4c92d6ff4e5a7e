"""An evaluator among peers that crash: receipts, results until they have arrived, and when its life ends."""

from __future__ import annotations

import msgspec
import pytest

from protocols.delivery.messages import Origin
from protocols.effects import Effect, Send
from protocols.errors import RemoteProtocolError
from protocols.join_index.evaluator import LAPSE_MS, RESEND_MS, Evaluator
from protocols.join_index.keys import value_text
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    JoinQuery,
    JoinResults,
    Load,
    Notified,
    Parcel,
    Receipt,
    SentTo,
)
from protocols.join_index.selections import Member
from protocols.subgraphs import (
    Reach,
)
from protocols.wire import MESSAGES
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


def an_evaluator(limits: JoinLimits = LIMITS) -> Evaluator:
    evaluator = Evaluator(EVALUATOR, limits)
    evaluator.begin(LIFE)
    return evaluator


def load(stream: str, row: tuple[int, int], value: int, *, group: bytes = b"", sequence: int = 0, at: int = 1) -> Load:
    """One tuple, or one trigger on the left, under a value of S.E."""
    schema, origin = STREAMS[stream].schema, Origin(PUBLISHER, stream, 1)
    place = (origin, at << 16, (sequence,), (value_text(value),), schema.encode([row]))
    return Load(S_E, group, 0, schema, *place)


def parcel(*loads: Load, number: int = 1, queries: tuple[JoinQuery, ...] = (), after: int = 0) -> Parcel:
    return Parcel(number=number, loads=loads, queries=queries, counts_on=True, after=after, settled=1)


def trigger(asked: JoinQuery, value: int = 7, sequence: int = 0) -> Load:
    return load("R", (1, value), value, group=Member(asked).group, sequence=sequence)


def vl_part(sequence: int = 0) -> Load:
    return load("S", (5, 7), 7, sequence=sequence, at=2)


Q_1 = query(name="q~1", life=9)


def meeting(evaluator: Evaluator) -> tuple[JoinResults, list[Effect]]:
    """A rewritten query and a tuple meet."""
    rewritten = parcel(trigger(Q_1), queries=(Q_1,))
    assert evaluator.unpack(REWRITER, rewritten, now=LIFE) == [Send(REWRITER, Receipt(number=1, life=LIFE))]
    effects = evaluator.unpack(REWRITER, parcel(vl_part(), number=2), now=LIFE)
    assert isinstance(effects[0], Send)
    assert isinstance(effects[0].message, JoinResults)
    return effects[0].message, effects


def test_a_receipt_says_how_many_results_had_left_by_then():
    evaluator = an_evaluator()
    told, effects = meeting(evaluator)
    (results,) = told.results
    assert (told.life, told.subscriber_life, told.sequence, results.query) == (LIFE, 9, 1, "q~1")
    assert [results.origins[place] for place in results.made_of[::2]] == [ORIGIN, Origin(PUBLISHER, "S", 1)]
    receipt = Receipt(number=2, life=LIFE, sent=(SentTo(SUBSCRIBER, 9, 1),))
    assert effects == [Send(SUBSCRIBER, told), Send(REWRITER, receipt)]
    again = evaluator.unpack(REWRITER, parcel(vl_part(), number=2), now=LIFE)
    assert again == [Send(REWRITER, receipt)], "a parcel that comes twice tells nothing twice, and says the same"


def test_an_attempt_whose_number_is_none_is_another_query():
    evaluator = an_evaluator()
    evaluator.unpack(REWRITER, parcel(queries=(Q_1,)), now=LIFE)
    endless = query(name=f"q~{'9' * 5000}", life=9)
    refused = evaluator.unpack(REWRITER, parcel(number=2, queries=(endless,)), now=LIFE)
    assert refused == [Send(REWRITER, Receipt(number=2, life=LIFE))]
    assert list(evaluator.tables.queries) == ["q~1"]
    with pytest.raises(RemoteProtocolError, match="length <= 1088"):
        MESSAGES.decode(MESSAGES.encode(parcel(queries=(endless,))))


@pytest.mark.parametrize("row", [(), (None, 7), ("x", 7)])
def test_a_tuple_without_what_its_columns_say_is_refused_with_its_parcel(row: tuple[object, ...]):
    asked = query("SELECT R.A, S.D FROM R, S WHERE R.B = S.E AND R.A < S.D", name="q~1", life=9)
    evaluator = an_evaluator()
    evaluator.unpack(REWRITER, parcel(trigger(asked), queries=(asked,)), now=LIFE)
    strange = msgspec.structs.replace(vl_part(), rows=msgspec.msgpack.encode([row]))
    parcel(strange, number=2).check()
    (sent,) = evaluator.unpack(REWRITER, parcel(strange, number=2), now=LIFE)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Receipt)
    assert sent.message.refused
    evaluator.validate()


def test_what_cannot_be_computed_of_a_pair_keeps_no_other_result_back():
    asked = query("SELECT R.A + S.D AS sum FROM R, S WHERE R.B = S.E", name="q~1", life=9)
    evaluator = an_evaluator()
    evaluator.unpack(REWRITER, parcel(trigger(asked), queries=(asked,)), now=LIFE)
    good, strange = vl_part(), vl_part(sequence=1)
    strange = msgspec.structs.replace(strange, rows=msgspec.msgpack.encode([(None, 7)]))
    told, receipt = evaluator.unpack(REWRITER, parcel(good, strange, number=2), now=LIFE)
    assert isinstance(receipt, Send)
    assert receipt.message == Receipt(number=2, life=LIFE, sent=(SentTo(SUBSCRIBER, 9, 1),))
    assert isinstance(told, Send)
    assert isinstance(told.message, JoinResults)
    assert [msgspec.msgpack.decode(each.rows) for each in told.message.results] == [[[6], [None]]]


@pytest.mark.parametrize(
    "rows", [b"", b"\xc1", msgspec.msgpack.encode([(5, 7), (5, 7)]), b"\x91\x92\x05" + b"\x91" * 5000]
)
def test_a_load_says_how_many_rows_it_has(rows: bytes):
    with pytest.raises(RemoteProtocolError, match="rows are not as many"):
        parcel(msgspec.structs.replace(vl_part(), rows=rows)).check()


def test_results_are_told_until_they_have_arrived():
    evaluator = an_evaluator()
    told, _ = meeting(evaluator)
    assert evaluator.sweep(LIFE + RESEND_MS - 1) == []
    assert evaluator.sweep(LIFE + RESEND_MS) == [Send(SUBSCRIBER, told)]
    evaluator.notified(SUBSCRIBER, Notified(subscriber_life=9, sequence=1))
    assert evaluator.sweep(LIFE + 2 * RESEND_MS) == []


def test_a_parcel_waits_for_the_queries_it_is_for():
    evaluator = an_evaluator()
    assert evaluator.unpack(REWRITER, parcel(trigger(Q_1), number=2, after=1), now=LIFE) == []
    evaluator.unpack(REWRITER, parcel(vl_part(), queries=(Q_1,)), now=LIFE)
    told, receipt = evaluator.unpack(REWRITER, parcel(trigger(Q_1), number=2, after=1), now=LIFE)
    assert isinstance(told, Send)
    assert isinstance(told.message, JoinResults)
    assert receipt == Send(REWRITER, Receipt(number=2, life=LIFE, sent=(SentTo(SUBSCRIBER, 9, 1),)))


def test_nobody_may_send_more_while_a_subscriber_is_slow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("protocols.join_index.evaluator.UNACKNOWLEDGED_BYTES_MAX", 1)
    evaluator = an_evaluator()
    evaluator.unpack(REWRITER, parcel(trigger(Q_1), queries=(Q_1,)), now=LIFE)
    (told,) = evaluator.unpack(REWRITER, parcel(vl_part(), number=2), now=LIFE)
    assert isinstance(told, Send)
    assert isinstance(told.message, JoinResults)
    assert evaluator.unpack(REWRITER, Parcel(number=0), now=LIFE) == [Send(REWRITER, Receipt(number=0, life=LIFE))]
    receipt = Receipt(number=2, life=LIFE, sent=(SentTo(SUBSCRIBER, 9, 1),))
    assert evaluator.notified(SUBSCRIBER, Notified(subscriber_life=9, sequence=1)) == [Send(REWRITER, receipt)]


def test_a_full_evaluator_says_so():
    evaluator = an_evaluator(JoinLimits(tuples_max=1))
    evaluator.unpack(REWRITER, parcel(vl_part(), queries=(Q_1,)), now=LIFE)
    (effect,) = evaluator.unpack(REWRITER, parcel(vl_part(sequence=1), number=2), now=LIFE)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Receipt)
    assert "no room" in effect.message.refused


def test_a_query_that_its_subscriber_has_ended_or_begun_anew_leaves_nothing():
    again = parcel(number=3, queries=(query(name="q~2", life=9),))
    for sender, end in ((SUBSCRIBER, Parcel(number=0, over=("q~1",))), (REWRITER, again)):
        evaluator = an_evaluator()
        meeting(evaluator)
        evaluator.unpack(sender, end, now=LIFE)
        assert "q~1" not in evaluator.tables.queries
        assert all(not each.message.results for each in evaluator.sweep(LIFE + RESEND_MS))  # type: ignore[attr-defined]
        evaluator.validate()


def test_what_comes_late_of_a_query_that_has_ended_is_not_kept():
    evaluator = an_evaluator()
    meeting(evaluator)
    evaluator.unpack(SUBSCRIBER, Parcel(number=0, over=("q~1",)), now=LIFE)
    stored = evaluator.tables.stored
    late = parcel(trigger(Q_1, sequence=1), number=3, queries=(Q_1,))
    assert evaluator.unpack(REWRITER, late, now=LIFE + 1) == [Send(REWRITER, Receipt(number=3, life=LIFE))]
    assert evaluator.tables.stored == stored


def test_a_query_whose_rewriters_are_gone_ends_the_life_of_the_evaluator():
    """Somebody may count on it still, and would not notice if the query alone were forgotten."""
    evaluator = an_evaluator()
    meeting(evaluator)
    evaluator.unpack(REWRITER, Parcel(number=0, counts_on=True), now=LIFE + 1000)
    evaluator.unpack(SUBSCRIBER, Parcel(number=0), now=LIFE + LAPSE_MS)
    evaluator.sweep(LIFE + LAPSE_MS + 1000)
    assert evaluator.life == LIFE
    evaluator.sweep(LIFE + LAPSE_MS + 1001)
    assert evaluator.life == LIFE + LAPSE_MS + 1001
    assert evaluator.is_empty()


def test_a_query_that_one_rewriter_has_let_go_is_kept_for_another():
    """It was posed at two, for who is nearest to an attribute may change, and only one of them counts."""
    evaluator = an_evaluator()
    meeting(evaluator)
    evaluator.unpack(PUBLISHER, parcel(queries=(Q_1,)), now=LIFE)
    evaluator.unpack(REWRITER, Parcel(number=0, released=("q~1",)), now=LIFE)
    assert "q~1" in evaluator.tables.queries
    evaluator.unpack(PUBLISHER, Parcel(number=0, released=("q~1",)), now=LIFE)
    assert "q~1" not in evaluator.tables.queries
    (answer,) = evaluator.unpack(PUBLISHER, parcel(number=2, queries=(Q_1,)), now=LIFE)
    assert "q~1" not in evaluator.tables.queries
    assert isinstance(answer, Send)
    assert isinstance(answer.message, Receipt)
    assert answer.message.refused, "what came of it before is gone, in this very life"


def test_results_that_are_dropped_with_a_query_are_said_to_be():
    """Their messages keep their numbers, and whoever counts these would believe that nothing is missing."""
    evaluator = an_evaluator()
    meeting(evaluator)
    evaluator.unpack(REWRITER, Parcel(number=0, counts_on=True, released=("q~1",)), now=LIFE)
    again = [each.message for each in evaluator.sweep(LIFE + RESEND_MS) if isinstance(each, Send)]
    assert [(each.results, each.dropped) for each in again if isinstance(each, JoinResults)] == [((), ("q~1",))]


def test_a_rewriter_that_is_gone_harms_nobody_once_its_queries_are_over():
    evaluator = an_evaluator()
    meeting(evaluator)
    evaluator.unpack(SUBSCRIBER, Parcel(number=0, over=("q~1",)), now=LIFE + LAPSE_MS)
    evaluator.sweep(LIFE + LAPSE_MS + 1)
    assert evaluator.life == LIFE


def test_tuples_go_with_the_last_query_that_waits_for_them():
    evaluator = an_evaluator(JoinLimits(away_ms=10 * LAPSE_MS))
    meeting(evaluator)
    assert evaluator.tables.stored > 0
    evaluator.unpack(SUBSCRIBER, Parcel(number=0, over=("q~1",)), now=LIFE)
    assert evaluator.is_empty()


def test_pairs_of_which_both_tuples_were_covered_are_not_told_again():
    evaluator = an_evaluator()
    resumed = query(name="q~2", life=9, resume=tuple(Reach(name, Origin(PUBLISHER, name, 1), 1) for name in ("R", "S")))
    evaluator.unpack(REWRITER, parcel(trigger(resumed), vl_part(), queries=(resumed,)), now=LIFE)
    effects = evaluator.unpack(REWRITER, parcel(vl_part(sequence=1), number=2), now=LIFE)
    told = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, JoinResults)]
    assert [(each.sequence, each.results[0].made_of) for each in told] == [(1, (0, 0, 1, 1))], "neither the first pair"
