"""Streams are altered at any peer, also at several at once: every version is decided once."""

from __future__ import annotations

import msgspec
import pytest

from protocols.catalogue.altering import Altering
from protocols.catalogue.entries import Claim, claim_item, encode, stream_in
from protocols.catalogue.events import StreamFound, SubscriberEntry
from protocols.catalogue.messages import AlterStream, CreateStream, DropStream, ListStreams, ShowStream, StreamsListed
from protocols.catalogue.streams import Alteration, Reads, StreamDefinition, stream_key
from protocols.clock import HybridClock
from protocols.ids import PeerId
from protocols.messages import Command, Done, Refused
from protocols.rights.needs import OF_COMMAND, Need, of_entry
from protocols.store.entries import Entry
from queries.schema import Field, Schema
from tests.protocols.catalogue.asking import looked_up
from tests.protocols.store.network import Faults, StoreNetwork
from tests.soaking import IS_SOAK

DELAY = Field("delay", "float", True)
ME = PeerId(b"m" * 20)
CREATED = StreamDefinition(name="flights", schema=Schema.parse("num int, at timestamp, gate string"), event_time="at")


@pytest.fixture
def network() -> StoreNetwork:
    network = StoreNetwork(seed=1, peers=5, faults=Faults(loss=0.05, repeat=0.1))
    network.run(5_000)
    assert isinstance(network.ask(network.up[0], CreateStream(definition=CREATED)), Done)
    return network


def definition(network: StoreNetwork, peer: PeerId, name: str = "flights") -> StreamDefinition:
    found = looked_up(network, peer, name)
    assert isinstance(found, StreamFound)
    assert found.definition is not None
    return found.definition


def read_by(network: StoreNetwork, reads: Reads) -> None:
    catalogue, token, peer = network.nodes[network.up[2]].catalogue, ("test", "reader"), network.up[2]
    assert catalogue
    entry = SubscriberEntry(subscription="q.1/f", peer=peer, reads=reads)
    network.effects(peer, catalogue.advertise_subscriber("flights", entry, 60_000, token, network.time))
    network.run_until(lambda: token in network.told)


def test_what_is_altered_at_one_peer_is_seen_at_every_other(network: StoreNetwork):
    assert isinstance(network.ask(network.up[1], AlterStream(name="flights", adds=DELAY)), Done)
    assert isinstance(network.ask(network.up[2], AlterStream(name="flights", drops="gate")), Done)
    for peer in network.up:
        found = definition(network, peer)
        assert (str(found.current), found.version) == ("num int, at timestamp, delay float null", 3)
        assert found.schema == CREATED.schema, "peers of 0.2 see the stream as it was created"
        assert found.dropped_since(1) == ("gate",)
        assert found.dropped_since(3) == ()
    listed = network.ask(network.up[3], ListStreams())
    assert isinstance(listed, StreamsListed)
    assert [each.version for each in listed.streams] == [3]


def test_a_claim_that_says_something_else_than_its_peer_wrote_is_given_up():
    """Whoever lies may write over it, and a peer that reads its own claim back must go on."""
    clock = HybridClock()
    altering = Altering(ME, clock, "flights", Alteration(asked_at=1, asked_by=ME, adds=DELAY))
    written: dict[str, Entry] = {}
    entries = (Entry(stream_key("flights"), "definition", 1, ME, encode(CREATED), 0),)

    def step() -> Claim:
        outcome = altering.read((*entries, *written.values()), 1000)
        assert isinstance(outcome, tuple)
        version, claim = outcome
        item = claim_item(CREATED.created_at, version, ME)
        written[item] = Entry(stream_key("flights"), item, 2, ME, encode(claim), 0)
        return claim

    begun, backed = step(), step()
    assert backed.backs is not None
    (item,) = written
    for forged in (msgspec.structs.replace(backed, backs=None), begun):
        written[item] = msgspec.structs.replace(written[item], value=encode(forged))
        assert step().backs == forged.backs, "it begins another ballot"
        backed = step()
    assert step().is_decided


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        (AlterStream(name="flights", adds=Field("gate", "int", True)), "exists", 'column "gate" already'),
        (AlterStream(name="flights", adds=Field("delay", "float")), "invalid", "may not be null"),
        (AlterStream(name="flights", adds=Field("rows", "list", True)), "invalid", "cannot be a list"),
        (AlterStream(name="flights", drops="gte"), "unknown", 'no column "gte"'),
        (AlterStream(name="flights", drops="at"), "invalid", "is its event time"),
        (AlterStream(name="flihgts", drops="at"), "unknown", 'stream "flihgts" is not known'),
        (
            CreateStream(
                definition=msgspec.structs.replace(
                    CREATED,
                    name="trades",
                    alterations=(Alteration(asked_at=1, asked_by=PeerId(bytes(20)), adds=DELAY),),
                )
            ),
            "invalid",
            "no alterations",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(network: StoreNetwork, command: Command, code: str, word: str):
    refused = network.ask(network.up[1], command)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.retry_after_ms) == (code, 0)
    assert word in refused.error
    assert definition(network, network.up[0]).version == 1


@pytest.mark.parametrize("reads", [Reads(), Reads(columns=("num", "gate"), version=1, reader='query "q"')])
def test_a_column_that_somebody_reads_stays(network: StoreNetwork, reads: Reads):
    read_by(network, reads)
    refused = network.ask(network.up[1], AlterStream(name="flights", drops="gate"))
    assert isinstance(refused, Refused)
    assert refused.error == 'column "gate" of stream "flights" is read'
    assert refused.detail.startswith(f"Its readers: {reads.reader or 'subscription'}")
    network.run(61_000)  # Who does not say so again reads no longer.
    assert isinstance(network.ask(network.up[1], AlterStream(name="flights", drops="gate")), Done)


def test_a_column_that_no_reader_needs_is_dropped_while_others_are_read(network: StoreNetwork):
    read_by(network, Reads(columns=("num", "at"), version=1, reader='query "q"'))
    assert isinstance(network.ask(network.up[1], AlterStream(name="flights", drops="gate")), Done)


def test_two_alterations_of_one_peer_take_turns(network: StoreNetwork):
    peer = network.up[1]
    first = network.request(peer, AlterStream(name="flights", adds=DELAY))
    second = network.ask(peer, AlterStream(name="flights", drops="gate"))
    assert isinstance(second, Refused)
    assert (second.code, second.retry_after_ms > 0) == ("busy", True)
    network.run_until(lambda: first in network.answers)
    assert isinstance(network.answers[first], Done)
    assert isinstance(network.ask(peer, AlterStream(name="flights", drops="gate")), Done)


def test_a_stream_that_is_made_again_is_not_altered(network: StoreNetwork):
    network.ask(network.up[1], AlterStream(name="flights", adds=DELAY))
    network.ask(network.up[2], DropStream(name="flights"))
    network.ask(network.up[3], CreateStream(definition=CREATED))
    assert definition(network, network.up[4]).version == 1
    assert isinstance(network.ask(network.up[4], AlterStream(name="flights", adds=DELAY)), Done)
    assert definition(network, network.up[0]).version == 2


def test_an_alteration_that_was_backed_and_not_decided_is_decided_by_whoever_comes_next(network: StoreNetwork):
    """Its peer crashed in between, and a reader may have relied on it already."""
    gone, created_at = PeerId(bytes(20)), definition(network, network.up[0]).created_at
    theirs = Alteration(asked_at=7, asked_by=gone, adds=Field("crew", "int", True))
    claim = Claim(stream="flights", begun=(7, gone), backed_in=(7, gone), backs=theirs)
    raw = msgspec.msgpack.encode(claim, enc_hook=bytes)
    network.write(network.up[1], stream_key("flights"), claim_item(created_at, 2, gone), raw, ("test", "claim"))
    network.run_until(lambda: ("test", "claim") in network.told)
    assert definition(network, network.up[2]).version == 1
    assert isinstance(network.ask(network.up[2], AlterStream(name="flights", adds=DELAY)), Done)
    found = definition(network, network.up[3])
    assert [str(each) for each in found.alterations] == ["ADD COLUMN crew int null", "ADD COLUMN delay float null"]


def test_claims_that_make_no_sense_are_not_followed(network: StoreNetwork):
    created_at, peer = definition(network, network.up[0]).created_at, PeerId(bytes(20))
    nonsense = Alteration(asked_at=7, asked_by=peer, drops="nothing")
    claim = Claim(stream="flights", begun=(7, peer), backed_in=(7, peer), backs=nonsense, is_decided=True)
    for number, item in enumerate((claim_item(created_at, 2, peer), f"alteration/{created_at}/2/zz", "alteration/")):
        raw = msgspec.msgpack.encode(claim, enc_hook=bytes)
        network.write(network.up[1], stream_key("flights"), item, raw, ("test", number))
        network.run_until(lambda number=number: ("test", number) in network.told)
    assert definition(network, network.up[0]).version == 1


@pytest.mark.parametrize("seed", range(200 if IS_SOAK else 12))
def test_alterations_of_several_peers_at_once_follow_one_another(seed: int):
    """Messages are lost, peers crash and come back: all see one history, and what was acknowledged is in it once."""
    network = StoreNetwork(seed=seed, peers=5, faults=Faults(loss=0.1, repeat=0.1, skew_ms=300))
    network.run(5_000)
    assert isinstance(network.ask(network.up[0], CreateStream(definition=CREATED)), Done)
    asked: dict[int, tuple[PeerId, str]] = {}
    histories: list[tuple[Alteration, ...]] = []
    for turn in range(6):
        for peer in network.rng.sample(network.up, 3):
            name = f"column_{len(asked)}"
            asked[network.request(peer, AlterStream(name="flights", adds=Field(name, "int", True)))] = (peer, name)
        if turn % 2:
            victim = network.rng.choice(network.up)
            network.run(network.rng.randrange(400))
            network.crash(victim)
            network.run(network.rng.randrange(1_500))
            network.start(victim)
        network.run(network.rng.randrange(2_000))
        found = looked_up(network, network.rng.choice(network.up), "flights")
        if isinstance(found, StreamFound) and found.definition is not None:
            histories.append(found.definition.alterations)
    network.run(30_000)
    histories += [definition(network, peer).alterations for peer in network.up]
    longest = max(histories, key=len)
    assert all(each == longest[: len(each)] for each in histories), f"{seed=}: two histories of one stream"
    added = [each.adds.name for each in longest if each.adds is not None]
    assert len(set(added)) == len(added)
    done = [name for request, (_, name) in asked.items() if isinstance(network.answers.get(request), Done)]
    assert len(done) >= 3, f"{seed=}: {network.answers}"
    assert set(done) <= set(added)
    refused = [each for each in network.answers.values() if isinstance(each, Refused)]
    assert all(each.code in ("busy", "unavailable") for each in refused), refused


def test_who_alters_a_stream_needs_the_right_to_create_it():
    """Also who writes claims into the store by hand; a claim that names another stream is not followed."""
    peer, command = PeerId(bytes(20)), AlterStream(name="flights", adds=DELAY)
    assert OF_COMMAND[AlterStream](command) == Need("create", "flights")
    raw = encode(Claim(stream="flights", begun=(7, peer)))
    entry = Entry(stream_key("flights"), claim_item(1, 2, peer), 7, peer, raw, 0)
    assert of_entry(entry, None) == Need("create", "flights")
    assert of_entry(msgspec.structs.replace(entry, value=None), entry) == Need("create", "flights")
    mine = Alteration(asked_at=7, asked_by=peer, adds=DELAY)
    for name, version in (("flights", 2), ("trades", 1)):
        claim = Claim(stream=name, begun=(7, peer), backed_in=(7, peer), backs=mine, is_decided=True)
        claimed = msgspec.structs.replace(entry, value=encode(claim))
        defined = msgspec.structs.replace(
            entry, item="definition", value=encode(msgspec.structs.replace(CREATED, created_at=1))
        )
        found = stream_in((claimed, defined), "flights", ()).definition
        assert found is not None
        assert found.version == version


def test_show_tells_what_was_altered(network: StoreNetwork):
    network.ask(network.up[1], AlterStream(name="flights", adds=DELAY))
    shown = network.ask(network.up[2], ShowStream(name="flights"))
    assert [str(each) for each in shown.definition.alterations] == ["ADD COLUMN delay float null"]  # type: ignore[attr-defined]
