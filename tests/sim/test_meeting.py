"""A publisher and a reader that open a stream at the same moment find each other without waiting for the next look."""

from __future__ import annotations

import random

import pytest

from overlay.sim.world import World
from protocols.catalogue.messages import CreateStream
from protocols.catalogue.streams import StreamDefinition
from protocols.delivery.messages import OpenSubscription, Publish, Rows
from protocols.limits import Limits
from protocols.messages import Answer, Done
from protocols.peer import Peer
from protocols.wire import RECORDS
from queries.schema import Schema

SCHEMA = Schema.parse("n int")
TRIPS_MAX = 14  # One way: looking, being listed, looking again, news, looking, asking, answering.


def took_ms(seed: int) -> int:
    """From the moment at which both begin until the reader has the row."""
    world = World(seed, lambda peer_id, rng: Peer(peer_id, rng, Limits()), RECORDS.encode, RECORDS.decode)
    rng = random.Random(seed)
    peers = world.start(8)
    world.run_for(3000)
    answers: list[Answer | None] = []
    create = CreateStream(definition=StreamDefinition(name="s", schema=SCHEMA))
    peers[0].request(create, lambda answer, last: answers.append(answer))
    world.run_for(1000 + rng.randrange(2000))
    assert isinstance(answers[0], Done)
    publisher, reader = rng.sample(peers, 2)
    began_at, came_at = world.now, []

    def heard(answer: Answer | None, last: bool) -> None:
        if isinstance(answer, Rows):
            came_at.append(world.now)

    publisher.request(Publish(stream="s", rows=SCHEMA.encode([(1,)]), count=1), lambda answer, last: None)
    world.run_for(rng.randrange(300))
    reader.request(OpenSubscription(stream="s", subscription="r", since="start"), heard)
    world.run_for(10_000)
    return came_at[0] - began_at


@pytest.mark.slow
def test_who_begin_together_meet_at_once():
    slow = {seed: ms for seed in range(60) if (ms := took_ms(seed)) > TRIPS_MAX * 80 + 300}
    assert not slow
