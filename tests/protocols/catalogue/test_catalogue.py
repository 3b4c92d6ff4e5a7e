"""The catalogue, asked at any peer of a small network: streams are made, found, listed and removed for all."""

from __future__ import annotations

import pytest

from protocols.catalogue.events import Advertised, LookupFailed, PublisherEntry, StreamFound, SubscriberEntry
from protocols.catalogue.messages import CreateStream, DropStream, ListStreams, ShowStream, StreamShown, StreamsListed
from protocols.catalogue.statistics import StreamStatistics
from protocols.catalogue.streams import StreamDefinition, stream_key
from protocols.events import Event
from protocols.ids import PeerId
from protocols.messages import Done, Refused
from queries.schema import Field, Schema
from tests.protocols.catalogue.asking import looked_up
from tests.protocols.store.network import Faults, StoreNetwork

SCHEMA = Schema.parse("id int, at timestamp")

STATISTICS = StreamStatistics(rate_per_s=2.5, row_bytes=40.0, fields=())


def definition(name: str = "flights", **others: object) -> StreamDefinition:
    return StreamDefinition(name=name, schema=SCHEMA, **others)


@pytest.fixture
def network() -> StoreNetwork:
    network = StoreNetwork(seed=1, peers=5, faults=Faults(loss=0.05, repeat=0.1))
    network.run(5_000)
    return network


def test_a_stream_made_at_one_peer_is_found_at_every_other(network: StoreNetwork):
    made = network.ask(network.up[0], CreateStream(definition=definition()))
    assert isinstance(made, Done)
    assert made.replicas >= 2
    for peer in network.up:
        found = looked_up(network, peer, "flights")
        assert isinstance(found, StreamFound)
        assert found.definition is not None
        assert found.definition.schema == SCHEMA


def test_another_stream_of_the_same_name_is_refused(network: StoreNetwork):
    network.ask(network.up[0], CreateStream(definition=definition()))
    other = StreamDefinition(name="flights", schema=Schema.parse("id string"))
    refused = network.ask(network.up[1], CreateStream(definition=other))
    assert isinstance(refused, Refused)
    assert (refused.code, '"flights"' in refused.error) == ("exists", True)


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (definition("no spaces"), "name"),
        (definition(event_time="id"), "event time"),
        (definition(event_time="when"), "event time"),
        (
            StreamDefinition(name="a", schema=Schema.parse("at timestamp null"), event_time="at"),
            'event time "at" may be null',
        ),
        (StreamDefinition(name="a", schema=Schema((Field("rows", "list"),))), "a column cannot be a list"),
        (definition(retention_ms=0), "retention"),
        (definition(lateness_ms=-1), "lateness"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused(network: StoreNetwork, bad: StreamDefinition, word: str):
    refused = network.ask(network.up[0], CreateStream(definition=bad))
    assert isinstance(refused, Refused)
    assert refused.code == "invalid"
    assert word in refused.error


def test_all_streams_are_listed_by_name_at_every_peer(network: StoreNetwork):
    names = ["trades", "flights", "weather", "planes"]
    for number, name in enumerate(names):
        network.ask(network.up[number], CreateStream(definition=definition(name)))
    for peer in network.up:
        answer = network.ask(peer, ListStreams())
        assert isinstance(answer, StreamsListed)
        assert [stream.name for stream in answer.streams] == sorted(names)


def test_an_unknown_stream_is_answered_with_the_nearest_name(network: StoreNetwork):
    network.ask(network.up[0], CreateStream(definition=definition()))
    for command in (ShowStream(name="flihgts"), DropStream(name="flihgts")):
        refused = network.ask(network.up[1], command)
        assert isinstance(refused, Refused)
        assert refused.code == "unknown"
        assert 'Did you mean "flights"?' in refused.hint
    found = looked_up(network, network.up[2], "flihgts")
    assert isinstance(found, StreamFound)
    assert (found.definition, found.nearest_name, found.is_dropped) == (None, "flights", False)


def test_a_dropped_stream_is_gone_everywhere_and_known_to_be_dropped(network: StoreNetwork):
    network.ask(network.up[0], CreateStream(definition=definition()))
    assert isinstance(network.ask(network.up[1], DropStream(name="flights")), Done)
    for peer in network.up:
        found = looked_up(network, peer, "flights")
        assert isinstance(found, StreamFound)
        assert (found.definition, found.is_dropped) == (None, True)
    assert network.ask(network.up[2], ListStreams()) == StreamsListed(streams=())
    assert isinstance(network.ask(network.up[3], CreateStream(definition=definition())), Done)
    assert isinstance(network.ask(network.up[4], ShowStream(name="flights")), StreamShown)


def test_publishers_and_subscribers_are_seen_from_everywhere_until_they_withdraw(network: StoreNetwork):
    first, second, third = network.up[:3]
    network.ask(first, CreateStream(definition=definition()))
    publisher = PublisherEntry(peer=second, epoch=7, accepted=10, statistics=STATISTICS)
    subscriber = SubscriberEntry(subscription="s-1", peer=third)

    def advertise(peer: PeerId, step: str) -> Event:
        catalogue, token, now = network.nodes[peer].catalogue, ("test", step), network.time
        assert catalogue
        effects = {
            "publish": lambda: catalogue.advertise_publisher("flights", publisher, 60_000, token, now),
            "subscribe": lambda: catalogue.advertise_subscriber("flights", subscriber, 60_000, token, now),
            "unsubscribe": lambda: catalogue.withdraw_subscriber("flights", "s-1", 60_000, token, now),
        }
        network.effects(peer, effects[step]())
        network.run_until(lambda: token in network.told)
        return network.told.pop(token)

    assert isinstance(advertise(second, "publish"), Advertised)
    assert isinstance(advertise(third, "subscribe"), Advertised)
    found = looked_up(network, first, "flights")
    assert isinstance(found, StreamFound)
    assert (found.publishers, found.subscribers) == ((publisher,), (subscriber,))
    shown = network.ask(third, ShowStream(name="flights"))
    assert isinstance(shown, StreamShown)
    assert [(each.peer, each.epoch, each.accepted, each.statistics) for each in shown.publishers] == [
        (second, 7, 10, STATISTICS)
    ]
    assert shown.subscriptions == 1

    advertise(third, "unsubscribe")
    found = looked_up(network, second, "flights")
    assert isinstance(found, StreamFound)
    assert (found.publishers, found.subscribers) == ((publisher,), ())
    network.run(61_000)
    found = looked_up(network, second, "flights")
    assert isinstance(found, StreamFound)
    assert (found.definition is not None, found.publishers) == (True, ())
    held = [item for peer in network.up for item in network.held(peer, stream_key("flights"))]
    assert set(held) == {"definition"}, "of what was withdrawn nothing is kept longer than it could have lasted"


def test_streams_survive_a_power_cut(network: StoreNetwork):
    network.ask(network.up[0], CreateStream(definition=definition()))
    for peer in (peers := network.up):
        network.crash(peer)
    for peer in peers:
        network.start(peer)
    network.run(5_000)
    answer = network.ask(network.up[1], ListStreams())
    assert isinstance(answer, StreamsListed)
    assert [stream.name for stream in answer.streams] == ["flights"]


def cut_off(network: StoreNetwork) -> PeerId:
    """A peer that sees nobody any more; there is a stream."""
    network.ask(network.up[0], CreateStream(definition=definition()))
    lonely = network.up[4]
    network.cut([lonely])
    network.run(2_500)
    return lonely


def test_a_peer_cut_off_from_the_owners_does_not_take_a_stream_for_unknown(network: StoreNetwork):
    assert isinstance(looked_up(network, cut_off(network), "flights"), LookupFailed)


def test_a_peer_cut_off_from_the_owners_makes_no_stream(network: StoreNetwork):
    refused = network.ask(cut_off(network), CreateStream(definition=definition("trades")))
    assert isinstance(refused, Refused)
    assert refused.code == "unavailable"
    assert refused.retry_after_ms > 0


def test_a_network_of_one_works_and_says_so():
    network = StoreNetwork(seed=1, peers=1)
    network.run(2_000)
    made = network.ask(network.up[0], CreateStream(definition=definition()))
    assert isinstance(made, Done)
    assert made.replicas == 1
