"""Peers of different releases in one network: who may link, who is refused, and that both sides say so."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from structlog.testing import capture_logs

from overlay import datagrams
from overlay.coordinates import DIMENSIONS, Coordinate
from overlay.datagrams import HINTS_MAX, Envelope, Found, Hint, WireCoordinate
from overlay.frames import HELLO, decode_hello
from overlay.identity import Identity, Network, PeerRecord
from overlay.outbox import LinkError
from overlay.overlay import JoinError, Overlay
from overlay.seal import BODY_BYTES_MAX
from overlay.table import Candidate
from overlay.understanding import Understanding
from protocols.versions import VERSIONS, Span, Versions
from tests.overlay.linked import LinkedPeer, RawMember, frame, on_both_loops, peers
from tests.overlay.networks import peer_id, started, until

NEWER = Span(7, 8)
NEWER_LINK: Versions = {**VERSIONS, "link": NEWER}
NEWER_EXECUTION: Versions = {**VERSIONS, "execution": NEWER}
REFUSED = "peer refused: no common version"
NOW = 1_800_000_000.0


async def linked(versions: Versions) -> tuple[LinkedPeer, LinkedPeer]:
    return await LinkedPeer().listen(), await LinkedPeer(versions=versions).listen()


@on_both_loops
async def test_without_a_common_version_both_ends_of_a_link_say_why_and_it_ends():
    a, b = await linked(NEWER_LINK)
    with capture_logs() as logs:
        with pytest.raises(LinkError, match=r"no common version: link \(2 here, 7 to 8 there\)"):
            await a.send(b, b"hello")
        await until(lambda: len(logs) == 2, "both have said so")
        with pytest.raises(LinkError, match="no common version"):
            await a.links.link(b.id, b.address)
    assert sorted((line["peer"], line["not_shared"], line["hint"]) for line in logs) == sorted(
        [
            (a.id.short, "link (7 to 8 here, 2 there)", "upgrade that peer"),
            (b.id.short, "link (2 here, 7 to 8 there)", "upgrade this peer"),
        ]
    )
    assert {line["event"] for line in logs} == {REFUSED}
    assert b.received == []
    assert a.stats["links_open"] == b.stats["links_open"] == 0
    assert a.stats["links_no_common_version_total"] == b.stats["links_no_common_version_total"] == 1
    assert a.stats["link_protocol_errors_total"] == b.stats["link_protocol_errors_total"] == 0
    await asyncio.gather(a.links.close(), b.links.close())


@on_both_loops
async def test_peers_that_share_the_link_are_linked_whatever_else_differs():
    a, b = await linked(NEWER_EXECUTION)
    with capture_logs() as logs:
        await a.send(b, b"hello")
        await b.send(a, b"hello too")
        await until(lambda: a.bodies() and b.bodies(), "both have heard")
    assert [line["event"] for line in logs] == ["peer does not share every protocol"] * 2
    await asyncio.gather(a.links.close(), b.links.close())


@on_both_loops
async def test_a_peer_that_states_no_versions_is_told_ours_and_refused():
    """As release 0.1 greets. The answer is a HELLO of ours, and then the end of the connection."""
    async with peers(1) as (a,):
        member = await RawMember().dial(a.address, greet=False)
        member.writer.write(frame(HELLO, msgspec.msgpack.encode(["", 0])))
        kind, _, body = await member.read_frame()
        assert kind == HELLO
        assert decode_hello(body).versions == VERSIONS
        assert await member.ended()
        await member.hang_up()
        assert a.stats["links_no_common_version_total"] == 1


@pytest.mark.slow
async def test_a_peer_of_another_link_version_does_not_get_in_and_both_sides_list_it():
    network = Network.create("test")
    one = Overlay(Identity.generate(), network, port=0, version="0.2.0")
    await one.start()
    other = Overlay(Identity.generate(), network, port=0, version="0.9.0", versions=NEWER_LINK, seeds=[one.address])
    await other.start()
    words = r"speaks other versions: link \(7 to 8 here, 2 there\), upgrade that peer"
    with capture_logs() as logs, pytest.raises(JoinError, match=words):
        await other.join(timeout_s=2)
    refused = [line for line in logs if line["event"] == REFUSED]
    assert {(line["peer"], line["release"]) for line in refused} == {
        (one.peer_id.short, "0.2.0"),
        (other.peer_id.short, "0.9.0"),
    }
    assert len(refused) == 2, "each side says it once, however often the other asks"
    for peer, stranger in ((one, other), (other, one)):
        (listed,) = [member for member in peer.members() if not member.is_self]
        assert (listed.peer_id, listed.status) == (stranger.peer_id, "incompatible")
        assert listed.versions == stranger.understanding.versions
        assert len(peer.dht.table) == 0
    await asyncio.gather(one.stop(), other.stop())


async def test_a_peer_that_understands_both_is_a_member_with_both():
    """A release that still understands the last one: an upgrade can go from peer to peer."""
    both: Versions = {**VERSIONS, "link": Span(VERSIONS["link"].newest, NEWER.newest)}
    async with started(3, versions={2: both}) as (one, two, bridge):
        await bridge.router.send(one.peer_id, b"down")
        assert [member.status for member in bridge.members()] == ["alive"] * 3
        assert len(one.members()) == len(two.members()) == 3


@pytest.mark.slow
async def test_a_member_that_comes_back_with_another_version_loses_its_place():
    network, identity = Network.create("test"), Identity.generate()
    one = Overlay(Identity.generate(), network, port=0)
    await one.start()
    before = Overlay(identity, network, port=0, seeds=[one.address])
    await before.start()
    await before.join()
    assert [member.status for member in one.members()] == ["alive", "alive"]
    port = before.address[1]
    await before.stop()
    gone: list[str] = []
    one.on_down.append(lambda record, why: gone.append(why))
    after = Overlay(identity, network, port=port, versions=NEWER_LINK, seeds=[one.address])
    await after.start()
    await until(lambda: [member.status for member in one.members()] == ["alive", "incompatible"], "it is refused")
    assert gone
    await after.stop()
    again = Overlay(identity, network, port=port, seeds=[one.address])
    await again.start()
    await again.join()
    assert [member.status for member in one.members()] == ["alive", "alive"]
    await asyncio.gather(one.stop(), again.stop())


async def test_members_that_do_not_share_a_family_know_it_of_each_other():
    async with started(3, versions={1: NEWER_EXECUTION}) as (one, other, third):
        assert not one.understanding.shares(other.peer_id, "execution")
        assert not other.understanding.shares(one.peer_id, "execution")
        assert one.understanding.shares(other.peer_id, "delivery")
        assert one.understanding.shares(third.peer_id, "execution")
        assert {member.status for peer in (one, other, third) for member in peer.members()} == {"alive"}
        assert {member.peer_id: member.versions for member in await third.crawl()}[other.peer_id] == NEWER_EXECUTION


def test_a_record_with_fields_of_a_newer_release_is_verified():
    """The signature is over the bytes as they came."""
    alice = Identity.generate()
    signed = PeerRecord.sign(alice, ("127.0.0.1", 7400), incarnation=7, now_s=NOW, version="9")
    fields = msgspec.msgpack.decode(signed.raw[:-64])
    body = msgspec.msgpack.encode([*fields, {"shoe": 43}])
    raw = body + alice.private_key.sign(b"peerd record 1\0" + body)
    newer = PeerRecord.verify(raw, NOW)
    assert (newer.peer_id, newer.address, newer.versions) == (alice.peer_id, signed.address, VERSIONS)


def test_the_longest_answer_fits_a_datagram_with_room_for_more_families():
    host, now_s = "2001:db8:1111:2222:3333:4444:5555:6666", NOW
    versions: Versions = {**VERSIONS, **{f"family_{number}": Span(1, 2) for number in range(4)}}
    record = PeerRecord.sign(
        Identity.generate(),
        (host, 65535),
        incarnation=int(now_s * 1000),
        now_s=now_s,
        version="v" * 99,
        versions=versions,
    )
    hint = Hint.of(Candidate(peer_id(1), (host, 65535), int(now_s * 1000)))
    coordinate = WireCoordinate.of(Coordinate((1.5,) * DIMENSIONS, 1.5, 1.5))
    body = datagrams.encode(Envelope(1 << 40, record.raw, coordinate, Found([hint] * HINTS_MAX)))
    assert len(body) <= BODY_BYTES_MAX


def test_what_is_learned_is_said_once_and_again_when_it_changes():
    understanding = Understanding()
    peer, place = peer_id(1), ("127.0.0.1", 7400)
    with capture_logs() as logs:
        for versions in (VERSIONS, NEWER_EXECUTION, NEWER_EXECUTION, NEWER_LINK, NEWER_LINK, VERSIONS, VERSIONS):
            understanding.learn(peer, place, "9", versions)
    assert [line["event"] for line in logs] == [
        "peer does not share every protocol",
        REFUSED,
        "peer shares every protocol now",
    ]
    assert understanding.shares(peer, "execution")
