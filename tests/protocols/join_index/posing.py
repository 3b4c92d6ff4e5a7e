"""A query as its subscriber poses it, for the tests of what follows."""

from __future__ import annotations

from typing import Any

from protocols.catalogue.messages import ShowStream
from protocols.effects import Effect, Route, Tell
from protocols.events import Received, Requested
from protocols.ids import Millis
from protocols.inside import Inside
from protocols.join_index.keys import attribute_key
from protocols.join_index.messages import AskEvaluators, Evaluators, IndexQuery, QueryIndexed
from protocols.join_index.subscriber import Subscriber
from protocols.messages import Answer, Refused
from protocols.subgraphs import (
    Deploy,
    Deployed,
    Indexed,
    Progress,
    StreamInput,
    Subgraph,
    SubgraphStatus,
)
from queries import sql
from tests.protocols.join_index.things import (
    EQUI_JOIN,
    EVALUATOR,
    R_B,
    REWRITER,
    S_E,
    STREAMS,
    SUBSCRIBER,
)


def deployment(attempt: int = 1, resume: Progress | None = None) -> Deploy:
    plan = sql.plan(EQUI_JOIN, STREAMS).plan
    inputs = tuple(StreamInput(name, name, 0, None, 0) for name in ("R", "S"))
    subgraph = Subgraph(0, plan, inputs, Indexed("sai"))
    return Deploy(query="q", attempt=attempt, subgraph=subgraph, consumer_host=None, resume=resume or Progress())


def looked_up(queries: Subscriber, asked: list[Effect], *shown: Answer, now: Millis = 0) -> AskEvaluators:
    """The question that follows once the catalogue has said what it knows of the streams, by default nothing."""
    answers = shown or (Refused(code="unavailable", error=""),) * 2
    effects: list[Effect] = []
    for each, answer in zip(asked, answers, strict=True):
        assert isinstance(each, Tell)
        assert isinstance(each.event, Requested)
        assert isinstance(each.event.command, ShowStream)
        effects = queries.answered(each.event.request, answer, now)
    (effect,) = effects
    assert isinstance(effect, Route)
    assert isinstance(effect.message, AskEvaluators)
    assert effect.key in (attribute_key(R_B), attribute_key(S_E))
    return effect.message


def routed(queries: Subscriber, asked: list[Effect]) -> list[IndexQuery]:
    """What becomes of a query when nobody knows the rates of its streams."""
    question = looked_up(queries, asked)
    peers = tuple(sorted((SUBSCRIBER, EVALUATOR, REWRITER)))
    effects = queries.named(Evaluators(query=question.query, peers=peers), now=0)
    assert [each.key for each in effects if isinstance(each, Route)] == [attribute_key(R_B), attribute_key(S_E)]
    return [each.message for each in effects if isinstance(each, Route) and isinstance(each.message, IndexQuery)]


def in_place(resume: Progress | None = None, late_ms: Millis = 0) -> Subscriber:
    """A query whose rewriters have it."""
    queries = Subscriber(SUBSCRIBER, Inside(), lambda: (EVALUATOR, REWRITER), late_ms)
    asked = queries.deploy(deployment(resume=resume), now=0)
    assert [each.rewrites for each in routed(queries, asked)] == [True, False]
    assert queries.indexed(REWRITER, indexed_by(0), now=0) == []
    effects = queries.indexed(EVALUATOR, indexed_by(1), now=0)
    told = [each.event.message for each in effects if isinstance(each, Tell) and isinstance(each.event, Received)]
    assert [type(each) for each in told] == [Deployed, SubgraphStatus]
    return queries


def indexed_by(side: Any, report: int = 1) -> QueryIndexed:
    return QueryIndexed(query="q~1", side=side, replica=0, reader=f"reader {side}", report=report)
