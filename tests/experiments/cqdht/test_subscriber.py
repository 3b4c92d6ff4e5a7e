"""The subscriber's part: where a query goes, when it is in place, and that a result is told once."""

from __future__ import annotations

from typing import Literal

import pytest

from experiments.cqdht.events import Notified, QueryFailed, QueryInPlace, QueryPosed, QueryStopped
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import AskRate, Notify, Query, QueryIndexed, QueryRefused, Rate, RemoveQuery
from experiments.cqdht.ready import ReadyQuery
from experiments.cqdht.subscriber import JoinSubscriber
from protocols.effects import Route, Tell
from protocols.events import Unroutable
from protocols.join_index.keys import attribute_key
from protocols.join_index.messages import Side
from tests.experiments.cqdht.things import query, r, s
from tests.protocols.join_index.things import R_B, S_E, received


@pytest.mark.parametrize(("choose_by", "side", "at"), [("rate", 1, S_E), ("skew", 0, R_B)])
def test_sai_asks_both_rewriters_and_goes_to_the_better(choose_by: Literal["rate", "skew"], side: Side, at):
    """Section 4.1: tuples of S are fewer, the values of R.B more even."""
    subscriber = JoinSubscriber(JoinLimits(choose_by=choose_by))
    assert subscriber.handle(QueryPosed(query()), now=0) == [
        Route(attribute_key(R_B), AskRate(query="q1", side=0, at=R_B)),
        Route(attribute_key(S_E), AskRate(query="q1", side=1, at=S_E)),
    ]
    left = received(Rate(query="q1", side=0, tuples=100, top_share=0.1))
    assert subscriber.handle(left, now=1) == []
    right = received(Rate(query="q1", side=1, tuples=10, top_share=0.5))
    placed = Route(attribute_key(at), Query(query=query(), side=side, replica=0))
    assert subscriber.handle(right, now=2) == [placed]
    assert subscriber.handle(left, now=3) == []
    assert subscriber.handle(Unroutable(placed.key, placed.message), now=4) == [placed]
    done = received(QueryIndexed(query="q1", side=side, replica=0))
    assert subscriber.handle(done, now=5) == [Tell(QueryInPlace("q1"))]
    assert subscriber.handle(done, now=6) == []


def test_dai_goes_to_every_replica_of_both_rewriters_and_is_taken_back_from_all():
    subscriber = JoinSubscriber(JoinLimits(replicas=2))
    each = query(algorithm="dai-t")
    places = [(side, at, replica) for side, at in ((0, R_B), (1, S_E)) for replica in range(2)]
    assert subscriber.handle(QueryPosed(each), now=0) == [
        Route(attribute_key(at, replica), Query(query=each, side=side, replica=replica)) for side, at, replica in places
    ]
    full = received(QueryRefused(query="q1", reason="full"))
    taken_back = [Route(attribute_key(at, replica), RemoveQuery(query="q1")) for _, at, replica in places]
    assert subscriber.handle(full, now=1) == [*taken_back, Tell(QueryFailed("q1", "full"))]
    assert subscriber.handle(full, now=1) == []
    assert subscriber.is_empty()
    lost = Query(query=each, side=0, replica=0)
    assert subscriber.handle(Unroutable(attribute_key(R_B), lost), now=2) == []


def test_what_cannot_be_indexed_goes_nowhere():
    (effect,) = JoinSubscriber(JoinLimits()).handle(QueryPosed(query("SELECT R.A FROM R")), now=0)
    assert effect == Tell(QueryFailed("q1", "only a join of two streams can be indexed"))


def test_a_result_is_told_once_and_not_after_the_end():
    subscriber = JoinSubscriber(JoinLimits())
    subscriber.handle(QueryPosed(query()), now=0)
    ready = ReadyQuery.of(query())
    found = [
        ready.meet(ready.read(r(1, 7, at=1, sequence=number), 0), ready.read(s(2, 7, at=1), 1)) for number in range(2)
    ]
    one, other = (each for each in found if each is not None)
    assert one.id != other.id
    assert subscriber.handle(received(Notify(notifications=(one, one))), now=2) == [Tell(Notified(one))]
    assert subscriber.handle(received(Notify(notifications=(one,))), now=3) == []
    subscriber.handle(QueryStopped("q1"), now=4)
    assert subscriber.handle(received(Notify(notifications=(other,))), now=5) == []
