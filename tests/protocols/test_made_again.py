"""A stream that is removed and made again under its name: nothing of the earlier one is in it, nothing of it is lost.

The peers that published to the earlier one, or read it, may not have heard of that yet.
"""

from __future__ import annotations

import pytest

from protocols.catalogue.messages import CreateStream, DropStream, ShowStream, StreamShown
from protocols.catalogue.streams import Durability, StreamDefinition
from protocols.delivery.messages import OpenSubscription, Publish, Published, Rows
from protocols.messages import Answer, Command, Refused
from queries.schema import Schema
from tests.sim.asking import Asking

SCHEMA = Schema.parse("id int")


class Stream:
    """One stream of a network; the peers are asked by their numbers."""

    def __init__(self, network: Asking, name: str, durability: Durability = "disk") -> None:
        self.network, self.name, self.durability = network, name, durability
        self.create()

    def ask(self, number: int, command: Command) -> Answer:
        return self.network.ask(self.network.peers[number], command)

    def create(self) -> None:
        definition = StreamDefinition(name=self.name, schema=SCHEMA, durability=self.durability)
        assert not isinstance(self.ask(0, CreateStream(definition=definition)), Refused)

    def remake(self) -> None:
        assert not isinstance(self.ask(0, DropStream(name=self.name, force=True)), Refused)
        self.create()

    def publish(self, number: int, row: int, created_at: int = 0) -> Answer:
        rows = SCHEMA.encode([(row,)])
        return self.ask(number, Publish(stream=self.name, rows=rows, count=1, created_at=created_at))

    def follow(self, number: int, *, keep: bool = False, created_at: int = 0) -> list[Answer]:
        """Read from the start; the answers come into the list."""
        command = OpenSubscription(
            stream=self.name, subscription=f"reads {self.name}", since="start", keep=keep, created_at=created_at
        )
        return self.network.begin(self.network.peers[number], command)

    def read(self, number: int) -> list[int]:
        answers = self.follow(number)
        self.network.world.run_for(30_000)
        return ids(answers)

    def created_at(self) -> int:
        shown = self.ask(0, ShowStream(name=self.name))
        assert isinstance(shown, StreamShown)
        return shown.definition.created_at


def ids(answers: list[Answer]) -> list[int]:
    batches = [batch for answer in answers if isinstance(answer, Rows) for batch in answer.batches]
    return [row[0] for batch in batches for row in SCHEMA.decode(batch.rows)]


@pytest.fixture(scope="module")
def network() -> Asking:
    """Each test has a stream of its own."""
    return Asking()


@pytest.mark.parametrize("durability", ["memory", "disk", "replicated"])
def test_a_reader_gets_nothing_of_the_earlier_stream(network: Asking, durability: Durability) -> None:
    stream = Stream(network, f"read-{durability}", durability)
    stream.publish(1, 1)
    stream.remake()
    assert isinstance(stream.publish(2, 2), Published)
    assert stream.read(3) == [2]


def test_what_is_published_where_the_earlier_one_was_is_in_the_new_one(network: Asking) -> None:
    stream = Stream(network, "published")
    stream.publish(1, 1)
    stream.remake()
    assert isinstance(stream.publish(1, 2), Published)
    assert stream.read(3) == [2]


def test_a_publisher_that_was_away_hears_it_from_a_client_that_knows(network: Asking) -> None:
    stream = Stream(network, "away")
    stream.publish(4, 1)
    before = stream.created_at()
    network.peers[4].crash()
    network.world.run_for(5_000)
    stream.remake()
    now = stream.created_at()
    assert now > before
    network.peers[4].start()
    assert isinstance(stream.publish(4, 2, created_at=now), Published)
    assert stream.read(3) == [2]


def test_a_client_that_means_the_earlier_stream_is_refused(network: Asking) -> None:
    stream = Stream(network, "meant")
    stream.publish(1, 1)
    before = stream.created_at()
    stream.remake()
    for number in (1, 2):
        refused = stream.publish(number, 2, created_at=before)
        assert isinstance(refused, Refused)
        assert refused.error == 'stream "meant" was removed, and another has its name'
    answers = stream.follow(3, created_at=before)
    network.world.run_for(5_000)
    assert [type(each) for each in answers] == [Refused]


@pytest.mark.parametrize("keep", [False, True])
def test_whoever_reads_the_earlier_stream_is_told_that_it_is_over(network: Asking, keep: bool) -> None:
    stream = Stream(network, f"followed-{keep}")
    stream.publish(1, 1)
    answers = stream.follow(2, keep=keep)
    network.world.run_for(5_000)
    assert ids(answers) == [1]
    if keep:  # What the journal knows of it counts.
        network.peers[2].crash()
        network.world.run_for(1_000)
        network.peers[2].start()
        answers = stream.follow(2, keep=keep)
        network.world.run_for(5_000)
    stream.remake()
    stream.publish(1, 2)
    network.world.run_for(10_000)
    assert isinstance(answers[-1], Refused)
    assert 2 not in ids(answers)
    assert stream.read(2) == [2], "from then on its name is free"
