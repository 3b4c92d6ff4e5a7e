"""A member writes entries of the right type without sense into the store: whoever reads them goes on."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from protocols.catalogue.entries import Claim, claimed, encode
from protocols.catalogue.messages import ShowStream
from protocols.catalogue.streams import stream_key
from protocols.delivery.messages import Note
from protocols.events import Abandoned
from protocols.execution.adopting import installed_in
from protocols.execution.messages import QueryInstalled, StopQuery, SubmitQuery
from protocols.messages import Refused
from protocols.rights.needs import of_entry
from protocols.store.entries import Entry
from tests.protocols.at_work import ASKED, COUNT, INDEXED, JOIN, network
from tests.protocols.lone import ALONE
from tests.protocols.things import make
from tests.seeds import draw_seed
from tests.sim.senseless import Mutator, deeper
from tests.soaking import many

CLAIM = Claim(stream="flights", begun=(1, ALONE))
INSTALLED = make(QueryInstalled)


@pytest.mark.slow
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


def test_what_nests_deeper_than_anybody_can_read_counts_as_absent():
    lone, good = network()
    for entry in good:
        deep = msgspec.structs.replace(entry, value=deeper(entry.value), stamp=entry.stamp + 1)
        assert deep.value != entry.value
        lone.peer.store._table.put(deep)
        assert of_entry(deep, None) is None, "whose it is can be told neither"
    for command in ASKED:
        lone.ask(command, 2000)
    shown = lone.answer(ShowStream(name="flights", exactly=True))
    assert isinstance(shown, Refused)
    assert shown.code == "unknown"
    claims = [Entry(stream_key("flights"), f"alteration/1/2/{'ab' * 20}", 9, ALONE, deeper(encode(CLAIM)), 0)]
    assert claimed(claims[0]) is None
    notes = (Note(1, 0, 0, (deeper(encode(INSTALLED)),)),)
    assert installed_in(notes) is None
