"""What clients are told of a query: that it runs, its line in a list, and all about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.clock import Stamp
from protocols.execution.messages import QueryAccepted, QueryListed, QueryShown
from queries.plan import Restructure, Union

if TYPE_CHECKING:
    from protocols.execution.submitted import SubmittedQuery


def accepted(query: SubmittedQuery, stamp: Stamp) -> QueryAccepted:
    """The query runs."""
    assert query.results.schema is not None
    return QueryAccepted(
        query=query.name,
        stream=query.stream,
        stamp=stamp,
        schema=query.results.schema,
        envelope=_envelope(query),
        known=query.services.publisher.own_origins(query.stream),
    )


def listed(query: SubmittedQuery) -> QueryListed:
    """One query in a list."""
    number = query.attempt.number if query.attempt is not None else 0
    text, installed, proxy = query.planning.text, query.installed, query.services.peer_id
    count = installed.before + query.results.count
    return QueryListed(query.name, query.stream, text, query.state, number, count, installed.inserted_at, proxy)


def shown(query: SubmittedQuery) -> QueryShown:
    """All about one query, for people to look at."""
    installed, attempt, results, placing = query.installed, query.attempt, query.results, query.planning.placing
    return QueryShown(
        query=query.name,
        stream=query.stream,
        text=query.planning.text,
        state=query.state,
        attempt=attempt.number if attempt is not None else 0,
        reason=query.retry.reason,
        inserted_at=installed.inserted_at,
        results=installed.before + results.count,
        subgraphs=attempt.shown() if attempt is not None else (),
        envelope=_envelope(query),
        dropped=results.dropped,
        dropped_for=results.dropped_for,
        placement=placing.placement,
        why=placing.choice.why if placing.choice is not None else "",
        moves=tuple(placing.moves),
        preparing=tuple(attempt.moving.awaited) if attempt is not None and attempt.moving is not None else (),
        story=tuple(query.lifecycle.story),
        since=installed.since,
        proxy=query.services.peer_id,
        durability=query.durability,
        takeover_ms=installed.takeover_ms or 0,
        term=installed.term,
    )


def _envelope(query: SubmittedQuery) -> tuple[str, ...]:
    """The XML elements around its results."""
    plan = query.planning.parsed.plan if query.planning.parsed is not None else None
    if isinstance(plan, Union):  # All branches of XML are in the same elements.
        plan = plan.branches[0]
    return plan.envelope if isinstance(plan, Restructure) else ()
