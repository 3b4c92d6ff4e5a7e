"""A member writes entries of the right type without sense into the store: whoever reads them goes on."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from protocols.events import Abandoned
from protocols.execution.messages import StopQuery, SubmitQuery
from tests.protocols.at_work import ASKED, COUNT, INDEXED, JOIN, network
from tests.seeds import draw_seed
from tests.sim.senseless import Mutator
from tests.soaking import many


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
