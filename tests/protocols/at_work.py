"""A peer at work, and what a client may ask it, for tests that talk nonsense to it."""

from __future__ import annotations

from protocols.catalogue.messages import ListDerived, ListStreams, ShowStream
from protocols.delivery.messages import OpenSubscription
from protocols.execution.messages import ListQueries, PlanQuery, ShowQuery, SubmitQuery, WeighQuery
from protocols.messages import Command
from protocols.store.entries import Entry
from tests.protocols.lone import Lone

JOIN = "SELECT a.id FROM flights a [RANGE 1 HOUR], flights b [RANGE 1 HOUR] WHERE a.id = b.id AND a.dest = b.dest"
INDEXED = "SELECT a.id FROM flights a, flights b WHERE a.id = b.id"
COUNT = "SELECT dest, count(*) AS n FROM flights [RANGE 1 MINUTE] GROUP BY dest"
ASKED: tuple[Command, ...] = (
    ShowStream(name="flights"),
    ShowStream(name="flight"),
    ListStreams(),
    ListDerived(),
    ListQueries(everywhere=True),
    ShowQuery(query="kept"),
    ShowQuery(query="kept@61"),
    *(WeighQuery(text=text) for text in (JOIN, INDEXED, COUNT)),
    PlanQuery(text=JOIN),
    OpenSubscription(stream="flights", subscription="late", since="start", heartbeats=True),
)


def network() -> tuple[Lone, list[Entry]]:
    """A peer with a stream, a subscription and a query, and all that the store holds of them."""
    lone = Lone()
    lone.create()
    lone.ask(OpenSubscription(stream="flights", subscription="kept", since="start", keep=True), 1000)
    lone.publish(*range(20))
    lone.answer(SubmitQuery(text="SELECT id FROM flights WHERE id > 3", name="kept"))
    lone.wait(20_000)
    return lone, [held.entry for held in lone.peer.store._table if held.entry.value is not None]
