"""Expelling a member on loopback: everybody else goes on under a new network key, and it is out for good."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from overlay.identity import Identity, Network
from overlay.keyring import Keyring
from overlay.outbox import LinkError
from overlay.overlay import JoinError, Overlay
from overlay.tls import LinkCredentials
from protocols.ids import PeerId
from tests.overlay.linked import NETWORK, LinkedPeer, on_both_loops
from tests.overlay.networks import PATIENCE_S, started, until


def status_of(peer: Overlay, other: PeerId) -> str | None:
    return next((member.status for member in peer.members() if member.peer_id == other), None)


async def expel(by: Overlay, peer: Overlay) -> None:
    (member,) = [each for each in by.members() if each.peer_id == peer.peer_id]
    await by.expel(member)


async def test_the_others_go_on_under_a_new_key_and_the_expelled_is_out() -> None:
    async with started(4) as peers:
        *others, victim = peers
        old = others[0].network
        links = {id(link) for peer in others for link in peer.links._all_links() if link.peer != victim.peer_id}
        await expel(others[0], victim)
        await until(lambda: {peer.network.generation for peer in others} == {2}, "all have the new key")
        assert len({peer.network.key for peer in others}) == 1
        assert victim.network == old
        for peer in others:
            await until(lambda peer=peer: status_of(peer, victim.peer_id) == "expelled", "it is listed as expelled")
        await until(lambda: victim.membership.cast_out, "it knows")
        assert victim.membership.cast_out.maker == others[0].peer_id
        await until(lambda: others[0].membership.progress()[1] == [], "the initiator knows who has the key")
        assert len(others[0].membership.progress()[0]) == 2
        now = {id(link) for peer in others for link in peer.links._all_links()}
        assert links <= now
        for peer in others:
            for other in others:
                if other is not peer:
                    assert status_of(peer, other.peer_id) == "alive"


@contextlib.asynccontextmanager
async def another(
    network: Network, seed: Overlay, identity: Identity, ring: Keyring | None = None
) -> AsyncIterator[Overlay]:
    """One more peer, which has some key of the network."""
    peer = Overlay(identity, network, port=0, version="test", seeds=[seed.address], ring=ring, overlap_ms=200)
    await peer.start()
    try:
        yield peer
    finally:
        await peer.stop()


@pytest.mark.slow
async def test_a_member_that_was_down_comes_back_by_tcp_when_its_key_is_no_longer_spoken() -> None:
    async with started(4, overlap_ms=200) as peers:
        one, two, sleeper, victim = peers
        old = sleeper.network
        await until(lambda: sleeper.peer_id in one.membership.ring.roster, "it is known")
        await sleeper.stop()
        await expel(one, victim)
        await until(lambda: one.network.generation == two.network.generation == 2, "both have the new key")
        for peer in (one, two):
            tags = [peer.network.tag]
            await until(lambda peer=peer, tags=tags: peer.dht.protocol._seals.tags == tags, "the old key is dropped")
        async with another(old, two, sleeper._identity, sleeper.membership.ring) as back:
            await back.join(timeout_s=PATIENCE_S)
            await until(lambda: back.network == one.network, "it has the new key")
            await until(lambda: status_of(one, back.peer_id) == "alive", "it is back")
            assert victim.peer_id in back.membership.ring.expelled


@pytest.mark.slow
async def test_neither_an_old_token_nor_the_new_key_lets_an_expelled_peer_in_again() -> None:
    async with started(3) as peers:
        one, two, victim = peers
        old = victim.network
        await expel(one, victim)
        await until(lambda: two.network.generation == 2, "all have the new key")
        new = one.network
        async with another(old, one, Identity.generate()) as stranger:
            with pytest.raises(JoinError):
                await stranger.join(timeout_s=2.5)
            await until(lambda: one.dht.protocol.counters["datagrams_outside_total"], "the old key says nothing")
            await until(lambda: "not known as a member" in stranger.membership.trouble, "it is told why")
            assert status_of(one, stranger.peer_id) is None
        lost = Network("test", b"x" * 32, 2, new.id)
        async with another(lost, one, Identity.generate()) as late:
            await until(lambda: "is not known at" in late.membership.trouble, "a key that nobody knows any more")
        async with another(new, two, victim._identity) as again:
            await until(lambda: again.membership.cast_out, "it is told that it was expelled")
            assert status_of(two, again.peer_id) == "expelled"
        async with another(new, two, Identity.generate()) as newcomer:
            await newcomer.join(timeout_s=PATIENCE_S)
            await until(lambda: victim.peer_id in newcomer.membership.ring.expelled, "a newcomer learns who is out")


async def test_two_expulsions_at_once_end_with_one_key_that_neither_expelled_knows() -> None:
    async with started(5) as peers:
        *others, first, second = peers
        for by, whom in ((others[0], first), (others[1], second)):
            await expel(by, whom)
        out = {first.peer_id, second.peer_id}
        await until(
            lambda: all(
                out == set(peer.membership.ring.expelled) and not peer.membership.ring.wants_a_key for peer in others
            ),
            "all know of both, and have a new key",
        )
        await until(lambda: len({peer.network.key for peer in others}) == 1, "and the same one")
        for peer in (first, second):
            await until(lambda peer=peer: peer.membership.cast_out, "it knows")
            assert others[0].network.key not in {held.key for held in peer.membership.ring.keys.values()}


async def test_ring_frames_without_sense_end_no_link() -> None:
    async with started(2) as (one, two):
        link = await one.links.link(two.peer_id, two.address)
        await until(lambda: link.stated, "both have greeted")
        for body in (b"\xc1", b"\x93\xaaRING_OFFER\x90", b"\x91" * 1000 + b"\xc0", bytes(1 << 20)):
            link.tell_ring(body)
        await until(lambda: two.membership.counters["ring_messages_senseless_total"] == 4, "all are counted")
        assert not link.closed
        assert two.network.generation == 1


@on_both_loops
async def test_a_link_is_made_under_whichever_key_both_sides_know() -> None:
    new = Network("test", b"w" * 32, 2, NETWORK.id)
    ahead, behind, newcomer = LinkedPeer(), LinkedPeer(), LinkedPeer(network=new)
    ahead.links.credentials = LinkCredentials(ahead.identity, new, NETWORK)
    ahead.links.tags_for = lambda _: ahead.links.credentials.tags
    try:
        for peer in (ahead, behind, newcomer):
            await peer.listen()
        for one, other in ((ahead, behind), (behind, ahead), (ahead, newcomer), (newcomer, ahead)):
            one.links.close_peer(other.id)
            other.links.close_peer(one.id)
            await one.send(other, b"hello")
            await until(lambda one=one, other=other: (one.id, b"hello") in other.received, "it has arrived")
        with pytest.raises(LinkError):
            await newcomer.send(behind, b"hello")
        assert await behind.links.meet(newcomer.address) == "it is not a member of this network"
    finally:
        await asyncio.gather(*(peer.links.close() for peer in (ahead, behind, newcomer)))
