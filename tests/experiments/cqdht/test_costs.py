"""What a tuple costs: messages counted in a calm network, beside what the paper says it costs."""

from __future__ import annotations

from collections import Counter

import pytest

from experiments.cqdht.interests import Interests
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import AlIndex
from protocols.ids import PeerId
from protocols.messages import Message
from protocols.subgraphs import Algorithm
from queries.catalogue import Stream
from queries.schema import Schema
from tests.experiments.cqdht.network import Network

STREAMS = {
    "R": Stream("R", Schema.parse("A int, B int, C int")),
    "S": Stream("S", Schema.parse("D int, E int, F int")),
}
JOIN = "SELECT R.A, S.D FROM R, S WHERE R.B = S.E"


def cost(network: Network, stream: str, row: tuple[int, ...]) -> dict[str, int]:
    before = Counter(network.sent)
    network.publish(stream, row)
    network.run(for_ms=100)
    return dict(sorted((network.sent - before).items()))


def posed(algorithm: Algorithm, queries: int = 1, interests: Interests | None = None, **more: bool) -> Network:
    network = Network(STREAMS, interests=interests)
    for _ in range(queries):
        network.pose(JOIN, algorithm, **more)
    network.run(for_ms=100)
    return network


def test_a_tuple_of_h_attributes_is_indexed_by_2h_messages():
    """Section 3.1."""
    assert cost(Network(STREAMS), "R", (1, 2, 3)) == {"AL_INDEX": 3, "VL_INDEX": 3}


@pytest.mark.parametrize(("algorithm", "of_r", "of_s"), [("sai", 1, 0), ("dai-q", 1, 1), ("dai-t", 1, 1)])
def test_an_evaluator_is_told_once_however_many_queries_there_are(algorithm: Algorithm, of_r: int, of_s: int):
    """Section 4, grouping; SAI is triggered by one relation only, DAI by both."""
    network = posed(algorithm, queries=20)
    assert cost(network, "R", (1, 7, 3)).get("JOIN", 0) == of_r
    assert cost(network, "S", (1, 8, 3)).get("JOIN", 0) == of_s


def test_dai_t_needs_no_join_once_it_has_been_told():
    """Section 5: after the rewritten queries have been distributed, no more goes from level to level."""
    network = posed("dai-t", is_set=True)
    assert cost(network, "R", (1, 7, 3)) == {"AL_INDEX": 3, "FINGER": 1, "JOIN": 1, "VL_INDEX": 3}
    assert cost(network, "R", (1, 7, 4)) == {"AL_INDEX": 3, "VL_INDEX": 3}


def test_where_interests_are_known_only_they_cost():
    """Two messages for a tuple under the join attribute, one in DAI-V; none for a relation nobody asks for."""
    assert cost(posed("dai-t", interests=Interests()), "R", (1, 7, 3)) == {
        "AL_INDEX": 1,
        "FINGER": 1,
        "JOIN": 1,
        "VL_INDEX": 1,
    }
    assert cost(posed("dai-v", interests=Interests()), "R", (1, 7, 3)) == {"AL_INDEX": 1, "FINGER": 1, "JOIN": 1}
    assert cost(posed("sai", queries=0, interests=Interests()), "R", (1, 7, 3)) == {}


def test_replicas_share_the_filtering_of_an_attribute():
    """Section 7: each of DR rewriters has the queries, and its share of the tuples."""
    network = Network(STREAMS, peers=64, limits=JoinLimits(replicas=4))
    tuples: Counter[PeerId] = Counter()

    def listen(_sender: PeerId, to: PeerId, message: Message) -> None:
        if isinstance(message, AlIndex) and message.at.path == ("B",):
            tuples[to] += 1

    network.on_message = listen
    name = network.pose(JOIN, "dai-q")
    network.run(for_ms=100)
    publisher = network.ids[0]
    for number in range(40):
        network.publish("R", (1, number % 5, 3), publisher)
    network.publish("S", (1, 4, 3))
    network.run(for_ms=100)
    assert sorted(tuples.values()) == [10, 10, 10, 10]
    assert sum(node.rewriter.stored for node in network.nodes.values()) == 8
    network.check(name)
