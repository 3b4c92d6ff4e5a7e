"""Who keeps the second copy of a stream, or has taken it over: one chain, whoever wishes for the next link."""

from __future__ import annotations

import msgspec
import pytest

from protocols.catalogue.custody import (
    CUSTODY,
    Custody,
    CustodyDecided,
    CustodyUndecided,
    Keeping,
    KeepingClaim,
    custodies_in,
)
from protocols.catalogue.streams import stream_key
from protocols.ids import PeerId
from protocols.rights.needs import Need, of_entry
from protocols.store.entries import Entry
from tests.protocols.store.network import Faults, StoreNetwork
from tests.soaking import IS_SOAK

STREAM, EPOCH = "late.19c8-3f9a77c0-2", 7


def wish(network: StoreNetwork, peer: PeerId, publisher: PeerId, keeping: Keeping, turn: int = 0) -> tuple[object, ...]:
    """Begin to wish; returns the token of the answer."""
    catalogue = network.nodes[peer].catalogue
    assert catalogue
    token = ("test", peer.hex(), turn)
    wished = catalogue.custody.wish(STREAM, publisher, EPOCH, keeping, lambda *_: True, token, network.time)
    network.effects(peer, wished)
    return token


def decided(network: StoreNetwork, token: tuple[object, ...]) -> Custody | None:
    network.run_until(lambda: token in network.told)
    event = network.told.pop(token)
    assert isinstance(event, CustodyDecided)
    return event.custody


@pytest.fixture
def network() -> StoreNetwork:
    network = StoreNetwork(seed=3, peers=5)
    network.run(5_000)
    return network


def test_links_follow_one_another_until_the_stream_is_taken_over(network: StoreNetwork):
    proxy, first, second, third = network.up[:4]
    for version, backup in enumerate((first, second), start=1):
        custody = decided(network, wish(network, proxy, proxy, Keeping(backup=backup), version))
        assert custody == Custody(proxy, EPOCH, version, Keeping(backup=backup))
    taken = Keeping(backup=second, is_taken=True, upto=9)
    assert decided(network, wish(network, second, proxy, taken)) == Custody(proxy, EPOCH, 3, taken)
    late = decided(network, wish(network, proxy, proxy, Keeping(backup=third), 9))
    assert late == Custody(proxy, EPOCH, 3, taken), "the proxy learns that it is over"


def test_what_was_backed_and_not_decided_is_decided_by_whoever_comes_next(network: StoreNetwork):
    """A backup crashed while it took over: the proxy finds that, and cannot go on beside it."""
    proxy, gone = network.up[0], network.up[4]
    taken = Keeping(backup=gone, is_taken=True, upto=3)
    claim = KeepingClaim(stream=STREAM, begun=(7, gone), backed_in=(7, gone), backs=taken)
    raw = msgspec.msgpack.encode(claim, enc_hook=bytes)
    item = f"{CUSTODY}{proxy.hex()}/{EPOCH}/1/{gone.hex()}"
    network.write(network.up[1], stream_key(STREAM), item, raw, ("test", "claim"))
    network.run_until(lambda: ("test", "claim") in network.told)
    assert decided(network, wish(network, proxy, proxy, Keeping(backup=network.up[2]))) == Custody(
        proxy, EPOCH, 1, taken
    )


def test_a_wish_that_makes_no_sense_any_more_is_not_made(network: StoreNetwork):
    catalogue = network.nodes[network.up[1]].catalogue
    assert catalogue
    token = ("test", "late")
    keeping = Keeping(backup=network.up[1], is_taken=True)
    wished = catalogue.custody.wish(STREAM, network.up[0], EPOCH, keeping, lambda *_: False, token, network.time)
    network.effects(network.up[1], wished)
    assert decided(network, token) is None
    assert not [item for peer in network.up for item in network.held(peer, stream_key(STREAM))]


def test_claims_that_make_no_sense_are_not_followed():
    peer = PeerId(bytes(20))
    keeping = Keeping(backup=peer, is_taken=True)
    claim = KeepingClaim(stream=STREAM, begun=(7, peer), backed_in=(7, peer), backs=keeping, is_decided=True)
    place = f"{CUSTODY}{peer.hex()}/{EPOCH}/1"
    for item, raw in (
        (f"{place}/zz", msgspec.msgpack.encode(claim, enc_hook=bytes)),
        (f"{CUSTODY}{peer.hex()}/{EPOCH}/2/{peer.hex()}", msgspec.msgpack.encode(claim, enc_hook=bytes)),
        (f"{place}/{peer.hex()}", b"nonsense"),
        (f"{place}/{peer.hex()}", msgspec.msgpack.encode(msgspec.structs.replace(claim, stream="x"), enc_hook=bytes)),
    ):
        assert custodies_in((Entry(stream_key(STREAM), item, 7, peer, raw, 0),), STREAM) == ()


def test_who_keeps_or_takes_over_a_query_needs_the_right_to_create_it():
    peer = PeerId(bytes(20))
    raw = msgspec.msgpack.encode(KeepingClaim(stream=STREAM, begun=(7, peer)), enc_hook=bytes)
    entry = Entry(stream_key(STREAM), f"{CUSTODY}{peer.hex()}/{EPOCH}/1/{peer.hex()}", 7, peer, raw, 0)
    assert of_entry(entry, None) == Need("create", "query:late")


@pytest.mark.parametrize("seed", range(200 if IS_SOAK else 12))
def test_a_new_backup_and_a_takeover_wished_for_at_once_exclude_each_other(seed: int):
    """Messages are lost, both crash and ask again: in the end both know the same, and a takeover is the last link."""
    network = StoreNetwork(seed=seed, peers=5, faults=Faults(loss=0.1, repeat=0.1, skew_ms=300))
    network.run(5_000)
    proxy, backup, other = network.up[:3]
    wishes = {proxy: Keeping(backup=other), backup: Keeping(backup=backup, is_taken=True, upto=4)}
    known: dict[PeerId, Custody] = {}
    for turn in range(20):
        tokens = {}
        for peer in network.rng.sample([proxy, backup], 2):
            if peer not in known and peer in network.up:
                tokens[peer] = wish(network, peer, proxy, wishes[peer], turn)
                network.run(network.rng.randrange(300))
        if turn < 4:
            victim = network.rng.choice([proxy, backup])
            network.crash(victim)
            network.run(network.rng.randrange(1_000))
            network.start(victim)
        network.run(20_000)
        for peer, token in tokens.items():
            event = network.told.get(token)
            assert event is None or isinstance(event, CustodyDecided | CustodyUndecided)
            if isinstance(event, CustodyDecided) and event.custody is not None:
                known[peer] = event.custody
        if len(known) == 2:
            break
    assert len(known) == 2, f"{seed=}: {known}"
    if known[backup].keeping.is_taken and known[backup].version == 1:
        assert known[proxy] == known[backup], f"{seed=}: the proxy goes on beside the peer that took over"
    else:
        assert known[proxy].keeping.backup == other, f"{seed=}"
        assert known[backup].version in (1, 2), f"{seed=}"
