"""Rewriters that share an attribute, among peers that crash: a side is as far as all of them are, and lost with any."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocols.catalogue.messages import PublisherShown, StreamShown
from protocols.catalogue.shares import PublisherShare
from protocols.catalogue.statistics import StreamStatistics
from protocols.catalogue.streams import StreamDefinition
from protocols.delivery.messages import Opened, OpenSubscription, Origin, Position
from protocols.effects import Effect, Route, Send, Tell
from protocols.events import Received, Requested
from protocols.ids import PeerId
from protocols.inside import Inside
from protocols.join_index.keys import attribute_key
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    Covered,
    Evaluators,
    IndexQuery,
    KeepQueries,
    QueryIndexed,
    QueryRefused,
    RemoveQuery,
    Side,
)
from protocols.join_index.rewriter import LEASE_MS, RELEASED_MS, SILENT_MS, Rewriter
from protocols.join_index.subscriber import KEEP_MS, PROGRESS_MS, Subscriber
from protocols.messages import Answer, Refused
from protocols.subgraphs import (
    AttemptLost,
    Deploy,
    Deployed,
    Indexed,
    Progress,
    Reach,
    ResultsReady,
    RewriterStatus,
    StreamInput,
    Subgraph,
    SubgraphStatus,
)
from queries import sql
from tests.protocols.join_index.posing import looked_up
from tests.protocols.join_index.things import EQUI_JOIN, EVALUATOR, PUBLISHER, R_B, REWRITER, S_E, STREAMS, SUBSCRIBER
from tests.protocols.join_index.things import query as join_query

OTHER = PeerId.of_public_key(b"another rewriter")
SELF_JOIN = "SELECT a.A, b.A AS other FROM R a, R b WHERE a.B = b.B"
PLACES: dict[tuple[Side, int], PeerId] = {(0, 0): REWRITER, (0, 1): OTHER, (1, 0): EVALUATOR, (1, 1): REWRITER}


# The subscriber.


def deployment(replicas: int, resume: Progress | None = None) -> Deploy:
    inputs = tuple(StreamInput(name, name, 0, None, 0) for name in ("R", "S"))
    subgraph = Subgraph(0, sql.plan(EQUI_JOIN, STREAMS).plan, inputs, Indexed("sai", replicas=replicas))
    return Deploy(query="q", attempt=1, subgraph=subgraph, consumer_host=None, resume=resume or Progress())


def posed(queries: Subscriber, deploy: Deploy, *shown: Answer) -> list[Effect]:
    """Deploy a query, with what is known of its streams. Its evaluators are the neighbours and the subscriber."""
    question = looked_up(queries, queries.deploy(deploy, now=0), *shown)
    peers = tuple(sorted((SUBSCRIBER, *queries.neighbours())))
    return queries.named(Evaluators(query=question.query, peers=peers), now=0)


def indexed(side: Side, replica: int) -> QueryIndexed:
    return QueryIndexed(query="q~1", side=side, replica=replica, reader=f"reader {side} {replica}", report=1)


def in_place(resume: Progress | None = None) -> Subscriber:
    """A query that two rewriters of each side have."""
    queries = Subscriber(SUBSCRIBER, Inside(), lambda: (EVALUATOR, REWRITER, OTHER))
    posed(queries, deployment(2, resume))
    for (side, replica), peer in PLACES.items():
        queries.indexed(peer, indexed(side, replica), now=0)
    return queries


def covered(side: Side, replica: int, upto: int, report: int = 1) -> Covered:
    """Each replica reads a publisher of its own."""
    covers = (Position(origin(side, replica), upto),)
    reader = f"reader {side} {replica}"
    return Covered(reader=reader, report=report, tuples=upto, messages=1, covers=covers, sent=())


def origin(side: Side, replica: int) -> Origin:
    return Origin((PUBLISHER, OTHER)[replica], "RS"[side], 1)


def reach(side: Side, replica: int, upto: int) -> Reach:
    return Reach("RS"[side], origin(side, replica), upto)


def told(effects: list[Effect]) -> list[object]:
    return [each.event.message for each in effects if isinstance(each, Tell) and isinstance(each.event, Received)]


def said(effects: list[Effect]) -> list[Progress | None]:
    return [each.event.progress for each in effects if isinstance(each, Tell) and isinstance(each.event, ResultsReady)]


def test_a_query_is_posed_at_every_replica_of_both_sides_and_again_where_it_is_not_in_place():
    queries = Subscriber(SUBSCRIBER, Inside(), lambda: (EVALUATOR, REWRITER))
    effects = posed(queries, deployment(2))
    asked = [(each.key, each.message) for each in effects if isinstance(each, Route)]
    assert [key for key, _ in asked] == [attribute_key(at, replica) for at in (R_B, S_E) for replica in (0, 1)]
    names = [(each.side, each.replica, each.replicas) for _, each in asked if isinstance(each, IndexQuery)]
    assert names == [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)]
    for rewriter in list(PLACES)[:3]:
        assert queries.indexed(PLACES[rewriter], indexed(*rewriter), now=0) == []
    again = [each.message for each in queries.sweep(2000) if isinstance(each, Route)]
    assert [(each.side, each.replica) for each in again if isinstance(each, IndexQuery)] == [(1, 1)]
    effects = queries.indexed(REWRITER, indexed(1, 1), now=2000)
    assert [type(each) for each in told(effects)] == [Deployed, SubgraphStatus]
    queries.validate()


def test_what_replicas_cover_is_put_together():
    queries = in_place()
    for (side, replica), peer in PLACES.items():
        queries.covered(peer, covered(side, replica, upto=3 + replica), now=1)
    (progress,) = said(queries.sweep(PROGRESS_MS))
    assert progress is not None
    reaches = [reach(side, replica, 3 + replica) for side, replica in PLACES]
    assert sorted(progress.covers, key=str) == sorted(reaches, key=str)
    (status, *_) = [each for each in told(queries.sweep(PROGRESS_MS)) if isinstance(each, SubgraphStatus)]
    assert status.index is not None
    assert status.index.rewriters == tuple(
        RewriterStatus("RS"[side], ("R.B", "S.E")[side], peer, side == 0, replica, 2, 3 + replica)
        for (side, replica), peer in PLACES.items()
    )
    assert [(each.alias, each.rows) for each in status.inputs] == [("R", 7), ("S", 7)]


def test_the_next_attempt_says_nothing_before_each_replica_has_what_the_last_attempt_had():
    queries = in_place(Progress((reach(0, 0, 2), reach(0, 1, 2))))
    assert said(queries.covered(REWRITER, covered(0, 0, upto=9), now=PROGRESS_MS)) == []
    assert said(queries.covered(OTHER, covered(0, 1, upto=1), now=PROGRESS_MS)) == []
    assert said(queries.covered(OTHER, covered(0, 1, upto=2, report=2), now=PROGRESS_MS)) == [
        Progress((reach(0, 0, 9), reach(0, 1, 2)))
    ]


def test_all_replicas_are_kept_and_with_one_of_them_all_are_lost():
    queries = in_place()
    kept = [(each.peer, each.message) for each in queries.sweep(KEEP_MS) if isinstance(each, Send)]
    assert kept == [(peer, KeepQueries(queries=(("q~1", *rewriter),))) for rewriter, peer in PLACES.items()]
    now = SILENT_MS + 1
    for side, replica in ((0, 0), (1, 0), (1, 1)):
        queries.covered(PLACES[side, replica], covered(side, replica, upto=1), now=now)  # type: ignore[arg-type, index]
    lost = queries.sweep(now)
    assert Tell(AttemptLost("q", 1, f"peer {OTHER.short} was silent")) in lost
    removed = [each.peer for each in lost if isinstance(each, Send) and isinstance(each.message, RemoveQuery)]
    assert sorted(removed) == sorted((REWRITER, OTHER, EVALUATOR))
    assert queries.is_empty()


def test_a_replica_that_two_peers_took_ends_the_attempt_and_one_that_nobody_asked_for_does_nothing():
    queries = in_place()
    assert queries.indexed(OTHER, indexed(0, 2), now=1) == []
    effects = queries.indexed(EVALUATOR, indexed(0, 1), now=1)
    assert [type(each.event) for each in effects if isinstance(each, Tell)] == [AttemptLost]


@pytest.mark.parametrize(("publishers", "rate_per_s", "replicas"), [(1, 90_000.0, 1), (12, 1000.0, 1), (12, 5000.0, 3)])
def test_streams_of_many_fast_publishers_have_several_rewriters_unasked(
    publishers: int, rate_per_s: float, replicas: int
):
    statistics = StreamStatistics(rate_per_s=rate_per_s, row_bytes=9.0, fields=())
    told = dict.fromkeys(("accepted", "processed", "pending", "dead_lettered", "expired"), 0)
    fast = PublisherShown(peer=PUBLISHER, epoch=1, backup=None, **told, statistics=statistics)
    definition = StreamDefinition(name="R", schema=STREAMS["R"].schema)
    shown = StreamShown(definition=definition, publishers=(fast,) * publishers, subscriptions=0)
    queries = Subscriber(SUBSCRIBER, Inside(), lambda: (EVALUATOR, REWRITER, OTHER, PUBLISHER))
    effects = posed(queries, deployment(0), shown, Refused(code="unavailable", error=""))
    asked = [each.message for each in effects if isinstance(each, Route)]
    assert [each.side for each in asked if isinstance(each, IndexQuery)] == [0] * replicas + [1]


# The rewriter.


def at_replica(replica: int, replicas: int = 2, side: Side = 0, **more: Any) -> IndexQuery:
    return IndexQuery(
        query=join_query(name="q~1", **more),
        side=side,
        replica=replica,
        evaluators=(EVALUATOR, REWRITER),
        replicas=replicas,
    )


def opens(effects: list[Effect]) -> list[PublisherShare]:
    commands = [each.event.command for each in effects if isinstance(each, Tell) and isinstance(each.event, Requested)]
    return [each.share for each in commands if isinstance(each, OpenSubscription)]


def test_each_replica_reads_its_share_also_where_one_peer_has_two():
    rewriter = Rewriter(REWRITER, JoinLimits(), Inside())
    assert opens(rewriter.index(SUBSCRIBER, at_replica(0), now=0)) == [PublisherShare(0, 2)]
    assert opens(rewriter.index(SUBSCRIBER, at_replica(1), now=0)) == [PublisherShare(1, 2)]
    replies = [
        effect
        for reader in list(rewriter.readers.values())
        for effect in rewriter.answered(reader.request, Opened(subscription=reader.name, stamp=0), now=0)
    ]
    names = [(each.message.side, each.message.replica) for each in replies]  # type: ignore[attr-defined]
    assert names == [(0, 0), (0, 1)]
    rewriter.keep(SUBSCRIBER, KeepQueries(queries=(("q~1", 0, 1),)), now=LEASE_MS)
    rewriter.sweep(LEASE_MS + 1)
    (left,) = rewriter.readers.values()
    assert left.share == PublisherShare(1, 2), "the other has lapsed"
    assert not rewriter._released, "evaluators still need the query"
    rewriter.validate()
    rewriter.remove(SUBSCRIBER, RemoveQuery(query="q~1"), now=LEASE_MS + 2)
    assert not rewriter.readers
    rewriter.sweep(LEASE_MS + RELEASED_MS + 3)
    assert rewriter.is_empty()


def test_queries_share_a_reading_only_with_those_of_their_share():
    rewriter = Rewriter(REWRITER, JoinLimits(), Inside())
    rewriter.index(SUBSCRIBER, at_replica(0), now=0)
    other = msgspec.structs.replace(at_replica(0), query=join_query(name="r~1"))
    assert opens(rewriter.index(SUBSCRIBER, other, now=0)) == []
    whole = msgspec.structs.replace(at_replica(0, replicas=1), query=join_query(name="s~1"))
    assert opens(rewriter.index(SUBSCRIBER, whole, now=0)) == [PublisherShare(0, 1)]
    first, last = rewriter.readers.values()
    assert not first.can_take_over(last)
    rewriter.validate()


def test_both_sides_of_a_stream_joined_with_itself_are_of_one_reading_in_each_share():
    rewriter = Rewriter(REWRITER, JoinLimits(), Inside())
    for replica in (0, 1):
        for side in (0, 1):
            rewriter.index(SUBSCRIBER, at_replica(replica, side=side, text=SELF_JOIN), now=0)  # type: ignore[arg-type]
    assert [sorted(each.held) for each in rewriter.readers.values()] == [
        [("q~1", 0, replica), ("q~1", 1, replica)] for replica in (0, 1)
    ]
    rewriter.validate()
    rewriter.remove(SUBSCRIBER, RemoveQuery(query="q~1"), now=1)
    assert not rewriter.readers


def test_a_replica_that_cannot_be_is_refused():
    rewriter = Rewriter(REWRITER, JoinLimits(), Inside())
    for replica, replicas in ((2, 2), (-1, 2), (0, 0)):
        reason = f"it names replica {replica} of {replicas}"
        assert rewriter.index(SUBSCRIBER, at_replica(replica, replicas), now=0) == [
            Send(SUBSCRIBER, QueryRefused(query="q~1", reason=reason))
        ]
