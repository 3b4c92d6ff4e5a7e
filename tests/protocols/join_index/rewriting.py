"""A query as it reaches a rewriter, and the parcels that come of it, for the tests of rewriters."""

from __future__ import annotations

from typing import Any

from protocols.delivery.messages import Opened, OpenSubscription
from protocols.effects import Effect, Send, Tell
from protocols.events import Requested
from protocols.ids import RequestId
from protocols.join_index.messages import IndexQuery, Parcel, QueryIndexed
from protocols.join_index.rewriter import Rewriter
from tests.protocols.join_index.things import EVALUATOR, REWRITER, SUBSCRIBER, query


def posed(name: str = "q~1", at: int = 0, rewrites: bool = True, algorithm: Any = "sai", side: Any = 0) -> IndexQuery:
    return IndexQuery(
        query=query(name=name, at=at, algorithm=algorithm),
        side=side,
        replica=0,
        rewrites=rewrites,
        evaluators=(EVALUATOR, REWRITER),
    )


def opened(rewriter: Rewriter, message: IndexQuery) -> RequestId:
    """Pose a query, and have its stream opened."""
    (effect,) = rewriter.index(SUBSCRIBER, message, now=0)
    assert isinstance(effect, Tell)
    assert isinstance(effect.event, Requested)
    assert isinstance(effect.event.command, OpenSubscription)
    request = effect.event.request
    name = effect.event.command.subscription
    indexed = QueryIndexed(query=message.query.id, side=message.side, replica=0, reader=name, report=1)
    assert rewriter.answered(request, Opened(subscription=name, stamp=0), now=0) == [Send(SUBSCRIBER, indexed)]
    return request


def parcels(effects: list[Effect]) -> list[Send]:
    return [each for each in effects if isinstance(each, Send) and isinstance(each.message, Parcel)]
