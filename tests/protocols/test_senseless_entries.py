"""A member writes entries of the right type without sense into the store: whoever reads them goes on."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from protocols.catalogue.messages import ListDerived, ListStreams, ShowStream
from protocols.delivery.messages import OpenSubscription
from protocols.events import Abandoned
from protocols.execution.messages import ListQueries, PlanQuery, ShowQuery, StopQuery, SubmitQuery, WeighQuery
from protocols.messages import Command
from protocols.store.entries import Entry
from tests.protocols.lone import Lone
from tests.seeds import draw_seed
from tests.sim.senseless import Mutator
from tests.soaking import many

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


@pytest.mark.parametrize("turn", range(many(2, soaked=60)))
def test_whoever_reads_them_goes_on(turn: int):
    rng = random.Random(draw_seed() + turn)
    mutator = Mutator(rng, "knows")
    changed: Counter[str] = Counter()
    lone, good = network()
    for entry in good:
        mutator.hear_of(entry)
    for _ in range(40):
        for entry in rng.sample(good, 2):
            senseless = mutator.entry(entry)
            changed[entry.item.partition("/")[0]] += senseless.value != entry.value
            lone.peer.store._table.put(senseless)
        for command in rng.sample(ASKED, 4):
            lone.ask(command, 500)
        lone.publish(*range(5))
        lone.answer(SubmitQuery(text=rng.choice((JOIN, INDEXED, COUNT)), name="brief"))
        lone.wait(2000)
        lone.answer(StopQuery(query="brief"))
        for request in range(1, lone.requests + 1):
            lone.happen(Abandoned(request))
        if rng.random() < 0.1:
            lone.restart()
            lone.wait(61_000)
    assert sum(changed.values()) > 40, changed
