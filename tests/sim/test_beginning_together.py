"""Several peers begin to publish in the same moment, while a query with windows of event time runs."""

from __future__ import annotations

from datetime import timedelta

from protocols.catalogue.messages import CreateStream
from protocols.catalogue.streams import StreamDefinition
from protocols.delivery.messages import Publish, Published, Punctuate
from protocols.messages import Done
from queries.expressions import EPOCH
from queries.schema import Schema
from tests.sim.asking import Asking

SCHEMA = Schema.parse("at timestamp")
ROWS, WINDOW_S, APART_MS = 300, 10, 250
COUNTS = f"SELECT count(*) AS n FROM files [RANGE {WINDOW_S} SECONDS SLIDE {WINDOW_S} SECONDS]"


def test_none_runs_away_from_those_who_begin_with_it() -> None:
    """Each publishes the rows of one file, so the first rows of the others are far behind its last."""
    network = Asking()
    network.ask(
        network.peers[0], CreateStream(definition=StreamDefinition(name="files", schema=SCHEMA, event_time="at"))
    )
    query = network.submit(network.peers[0], "counts", COUNTS)
    rows = SCHEMA.encode([(EPOCH + timedelta(seconds=second),) for second in range(ROWS)])
    publishers, answers = network.peers[1:4], []
    for peer in publishers:
        answers.append(network.begin(peer, Publish(stream="files", rows=rows, count=ROWS)))
        network.world.run_for(APART_MS)
    network.world.run_for(5_000)
    assert [type(each) for listed in answers for each in listed] == [Published] * len(publishers)
    for peer in publishers:
        assert isinstance(network.ask(peer, Punctuate(stream="files")), Done)
    assert network.read(network.peers[5], query) == [(len(publishers) * WINDOW_S,)] * (ROWS // WINDOW_S)
