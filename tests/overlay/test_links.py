"""All links of a peer: who gets in, one link for each pair, reconnecting, heartbeat, and shaped conditions."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
import time

import pytest

from overlay.frames import HELLO, Hello, encode
from overlay.identity import Identity, Network
from overlay.links import LinkError, LinkLimits
from overlay.tls import LinkCredentials
from protocols.versions import VERSIONS
from tests.overlay.linked import LinkedPeer, RawMember, frame, on_both_loops, peers
from tests.overlay.networks import PATIENCE_S, until
from tests.seeds import draw_seed

QUICK = LinkLimits(ping_every_s=0.1, silence_s=0.6)
HASTY = LinkLimits(handshake_s=1.5)  # Long enough for a handshake on a busy machine.


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def is_turned_away(peer: LinkedPeer, context: ssl.SSLContext) -> bool:
    """Whether a client of this context gets nothing but the end; with TLS 1.3 it may learn so at its first read."""
    try:
        reader, writer = await asyncio.open_connection(*peer.address, ssl=context, server_hostname="")
    except OSError:
        return True
    try:
        # It does all that a member would: silence is refused anyway.
        writer.write(frame(HELLO, encode(Hello("", 0, dict(VERSIONS)))))
        return await reader.read(1) == b""
    except OSError:
        return True
    finally:
        writer.transport.abort()


# Who gets in.


@on_both_loops
async def test_a_peer_of_another_network_is_refused_in_both_directions():
    async with peers(1) as (a,):
        stranger = await LinkedPeer(network=Network("test", b"x" * 32)).listen()
        with pytest.raises(LinkError, match="it is not a member of this network"):
            await stranger.send(a, b"let me in")
        with pytest.raises(LinkError, match="it is not a member of this network"):
            await a.send(stranger, b"come in")
        await until(lambda: a.stats["link_accepts_refused_total"] == 1, "the refusal is counted")
        assert (a.received, stranger.received) == ([], [])
        await stranger.links.close()


@on_both_loops
async def test_a_dialler_accepts_no_other_peer_than_the_one_it_dialled():
    async with peers(3) as (a, b, c):
        with pytest.raises(LinkError, match=f"cannot be reached: peer {c.id.short} answers there"):
            await a.links.send(b.id, c.address, b"for b alone")
        with pytest.raises(LinkError, match="that is this peer itself"):
            await a.send(a, b"to myself")
        await until(lambda: c.stats["links_half_open"] == 0, "the connection is gone")
        assert (c.received, a.stats["links_open"], c.stats["links_open"]) == ([], 0, 0)


@on_both_loops
async def test_a_member_that_speaks_no_protocol_of_ours_is_refused():
    async with peers(1) as (a,):
        context = LinkCredentials(Identity.generate(), Network("test", b"n" * 32)).client
        context.set_alpn_protocols(["other/1"])
        assert await is_turned_away(a, context)
        await until(lambda: a.stats["link_accepts_refused_total"] == 1, "it is refused")


@on_both_loops
async def test_a_member_without_a_certificate_is_refused():
    async with peers(1) as (a,):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["peerd/1"])
        assert await is_turned_away(a, context)
        await until(lambda: a.stats["link_accepts_refused_total"] == 1, "it is refused")


@on_both_loops
async def test_connections_that_say_nothing_are_silent_for_us_too(caplog):
    async with peers(1) as (a,):
        with caplog.at_level(logging.DEBUG):
            for _ in range(100):
                _, writer = await asyncio.open_connection(*a.address)
                writer.close()
                await writer.wait_closed()
            await until(lambda: a.stats["link_accepts_refused_total"] == 100, "all are noticed")
        assert [record.message for record in caplog.records if record.levelno > logging.DEBUG] == []
        assert (a.stats["links_half_open"], a.lost) == (0, [])


@pytest.mark.slow
@on_both_loops
async def test_a_connection_that_proves_nothing_in_time_is_dropped():
    async with peers(1, limits=HASTY) as (a,):
        reader, writer = await asyncio.open_connection(*a.address)
        started_at = time.monotonic()
        assert await reader.read() == b""
        assert time.monotonic() - started_at >= HASTY.handshake_s / 2
        writer.close()
        member = await RawMember().dial(a.address, greet=False)  # Through TLS, and then no HELLO.
        assert await member.ended()
        assert a.stats["links_half_open"] == 0
        await member.hang_up()


@on_both_loops
async def test_many_half_open_connections_do_not_keep_a_member_out():
    limits = LinkLimits(half_open_max=8)
    async with peers(1, limits=limits) as (a,), peers(1) as (b,):
        writers = [(await asyncio.open_connection(*a.address))[1] for _ in range(60)]
        await until(lambda: a.stats["links_half_open"] == 8, "the limit is reached")
        await b.send(a, b"member")
        await until(lambda: a.received, "the member gets through")
        assert a.stats["links_half_open"] <= 8
        for writer in writers:
            writer.close()


# One link for each pair.


@on_both_loops
async def test_all_who_send_at_once_share_one_dial():
    async with peers() as (a, b):
        await asyncio.gather(*(a.send(b, bytes([n])) for n in range(100)))
        await until(lambda: len(b.received) == 100, "all arrive")
        assert a.stats["links_dialled_total"] == 1


@on_both_loops
async def test_many_peers_are_dialled_at_once_but_not_too_many():
    async with peers(12, limits=LinkLimits(dials_max=3)) as everyone:
        hub, others = everyone[0], everyone[1:]
        for peer in others:
            hub.shaper.shape(peer.address, delay_ms=50)  # A dial then takes about 100 ms.
        started_at = time.monotonic()
        await asyncio.gather(*(hub.send(peer, b"hello") for peer in others))
        took_s = time.monotonic() - started_at
        await until(lambda: all(peer.received for peer in others), "all arrive")
        assert took_s >= 4 * 0.1  # Eleven in groups of three.
        assert hub.stats["links_open"] == 11


def is_settled(peer: LinkedPeer) -> bool:
    """Whether one link is left, and none on its way in or out."""
    return [peer.stats[name] for name in ("links_open", "links_leaving", "links_dialling")] == [1, 0, 0]


@pytest.mark.parametrize("shaped", [False, pytest.param(True, marks=pytest.mark.slow)])
@on_both_loops
async def test_two_that_dial_each_other_end_with_one_link_and_lose_nothing(shaped):
    seed = draw_seed()
    for round_seed in range(seed, seed + 12):
        rng = random.Random(round_seed)
        async with peers(seed=round_seed) as (low, high):
            if shaped:
                for one, other in ((low, high), (high, low)):
                    one.shaper.shape(other.address, delay_ms=rng.uniform(0, 8), jitter=2.0)

            async def talk(one: LinkedPeer, other: LinkedPeer, rng: random.Random) -> None:
                await asyncio.sleep(rng.uniform(0, 0.004))
                for n in range(60):
                    await one.send(other, n.to_bytes(1, "big"))
                    if rng.random() < 0.3:
                        await asyncio.sleep(rng.uniform(0, 0.002))

            rngs = [random.Random(rng.random()) for _ in range(2)]
            await asyncio.gather(talk(low, high, rngs[0]), talk(high, low, rngs[1]))
            expected = [n.to_bytes(1, "big") for n in range(60)]
            await until(lambda: len(low.received) >= 60 and len(high.received) >= 60, f"all arrive, seed {round_seed}")
            await until(lambda: is_settled(low) and is_settled(high), f"one link is left, seed {round_seed}")
            assert sorted(low.bodies()) == expected
            assert sorted(high.bodies()) == expected
            kept = [low.links._current(high.id), high.links._current(low.id)]
            assert kept[0].dialled != kept[1].dialled
            if low.stats["links_dialled_total"] and high.stats["links_dialled_total"]:
                assert kept[0].dialled, f"the link of the lower id is kept, seed {round_seed}"
            assert (low.lost, high.lost) == ([], [])
            assert low.stats["link_protocol_errors_total"] == high.stats["link_protocol_errors_total"] == 0


@on_both_loops
async def test_a_channel_on_the_link_that_loses_lives_on_until_it_is_closed():
    async with peers() as (low, high):
        ours, theirs = await high.open(low)
        await low.links._first_link(high.id, high.address)  # As if it had dialled at the same time.
        both = (low, high)
        await until(
            lambda: [(peer.stats["links_open"], peer.stats["links_leaving"]) for peer in both] == [(1, 1)] * 2,
            "the link of the higher id is on its way out",
        )
        assert low.links._current(high.id).dialled
        assert ours.link.is_leaving
        for n in range(200):  # More than a window: credit flows, too.
            await ours.send(bytes([n]) * 1000)
            assert await theirs.recv() == bytes([n]) * 1000
            theirs.done(1000)
        ours.close()
        await until(lambda: all(peer.stats["links_leaving"] == 0 for peer in both), "it closes after the channel")
        assert (low.lost, high.lost) == ([], [])


@on_both_loops
async def test_a_second_link_from_the_same_dialler_replaces_the_first():
    async with peers(1) as (a,):
        identity = Identity.generate()
        first = await RawMember(identity).dial(a.address)
        second = await RawMember(identity).dial(a.address)
        link = a.links._current(identity.peer_id)
        await link.control(b"to the new one")
        while (await second.read_frame())[2] != b"to the new one":
            continue  # A ping may come first.
        assert a.stats["links_open"] == 1
        await first.hang_up()
        await until(lambda: a.stats["links_leaving"] == 0, "the first is gone")
        assert a.lost == []
        await second.hang_up()


@on_both_loops
async def test_a_member_that_dials_again_and_again_has_few_links():
    async with peers(1) as (a,):
        identity = Identity.generate()
        members = [await RawMember(identity).dial(a.address) for _ in range(20)]
        leaving_max = LinkLimits().leaving_max
        await until(lambda: a.stats["links_leaving"] <= leaving_max, "all but a few are gone")
        assert (a.stats["links_open"], a.stats["links_leaving"]) == (1, leaving_max)
        for member in members[: -1 - leaving_max]:
            assert await member.ended()
        assert a.lost == []
        await a.links._current(identity.peer_id).control(b"to the newest")
        while (await members[-1].read_frame())[2] != b"to the newest":
            continue
        for member in members:
            await member.hang_up()


# Reconnecting.


@on_both_loops
async def test_a_peer_that_restarts_is_reached_again():
    async with peers() as (a, b):
        await a.send(b, b"one")
        await until(lambda: b.received, "it arrives")
        await b.links.close()
        await until(lambda: a.lost == [b.id], "the loss is told")
        again = await LinkedPeer(b.identity).listen(port=b.address[1])
        await a.send(again, b"two")
        await until(lambda: again.received, "it arrives")
        assert again.received == [(a.id, b"two")]
        await again.links.close()


@on_both_loops
async def test_a_failed_dial_says_why_and_backs_off_until_forgotten():
    async with peers() as (a, b):
        await b.links.close()
        with pytest.raises(
            LinkError, match=rf"peer {b.id.short} at 127.0.0.1:\d+ cannot be reached: connection refused"
        ):
            await a.send(b, b"x")
        assert 0 < a.links._backoffs[b.id].wait_s <= 0.3
        a.links._backoffs[b.id].until_at += PATIENCE_S  # The moment is over soon on a busy machine.
        with pytest.raises(LinkError, match="could not be reached a moment ago: connection refused") as caught:
            await a.send(b, b"x")
        assert caught.value.retry_in_s > 0
        assert a.stats["link_dials_failed_total"] == 1
        a.links.close_peer(b.id)
        with pytest.raises(LinkError, match="cannot be reached"):
            await a.send(b, b"x")
        assert a.stats["link_dials_failed_total"] == 2


@on_both_loops
async def test_waits_between_dials_stay_within_their_bounds_and_a_new_address_is_tried_at_once():
    async with peers() as (a, b):
        await b.links.close()
        a.links._rng = random.Random(5)
        waits = []
        for _ in range(12):
            with pytest.raises(LinkError, match="cannot be reached") as caught:
                await a.send(b, b"x")
            waits.append(caught.value.retry_in_s)
            a.links._backoffs[b.id].until_at = 0.0  # As if the wait were over.
        assert all(0.1 <= wait_s <= 5.0 for wait_s in waits)
        assert max(waits[6:]) > max(waits[:1])
        again = await LinkedPeer(b.identity).listen()
        with pytest.raises(LinkError, match="cannot be reached"):
            await a.send(b, b"x")
        await a.send(again, b"x")
        await until(lambda: again.received, "it arrives at its new address")
        assert b.id not in a.links._backoffs
        await again.links.close()


@on_both_loops
async def test_a_dial_can_be_called_off():
    async with peers() as (a, b):
        a.shaper.shape(b.address, cut=True)
        sending = asyncio.create_task(a.send(b, b"x"))
        await until(lambda: a.stats["links_dialling"] == 1, "it is dialling")
        a.links.close_peer(b.id)
        with pytest.raises(LinkError, match="closed while being dialled"):
            await sending
        assert a.stats["links_dialling"] == 0


@on_both_loops
async def test_addresses_that_are_none_fail_like_others():
    async with peers() as (a, b):
        for address in (("127.0.0.1", 70_000), ("a" * 300, 7400), ("\0", 7400)):
            with pytest.raises(LinkError, match="cannot be reached"):
                await a.links.send(b.id, address, b"x")


@on_both_loops
async def test_closing_a_peer_closes_the_link_without_calling_it_lost():
    async with peers() as (a, b):
        await a.send(b, b"one")
        a.links.close_peer(b.id)
        await until(lambda: b.lost == [a.id], "the other side notices")
        await until(lambda: a.stats["links_leaving"] == 0, "it is gone")
        assert (a.lost, b.bodies()) == ([], [b"one"])


@on_both_loops
async def test_draining_delivers_what_was_accepted_both_ways_and_begins_nothing_new():
    async with peers(3) as (a, b, c):
        for n in range(200):
            await a.send(b, bytes([n]) * 5000)
            await b.send(a, bytes([n]) * 5000)
        await a.links.drain()
        assert a.stats["links_open"] == a.stats["links_leaving"] == 0
        await until(lambda: len(b.received) == 200, "everything arrives there")
        assert len(a.received) == 200
        with pytest.raises(LinkError, match="closing its links"):
            await a.send(c, b"x")
        with pytest.raises(LinkError, match="connection refused"):
            await c.send(a, b"x")
        assert (a.lost, b.lost) == ([], [])


# Heartbeat.


@on_both_loops
async def test_round_trips_are_measured_on_both_sides_of_an_idle_link():
    async with peers(limits=QUICK) as (a, b):
        await a.send(b, b"x")
        await until(lambda: len(a.round_trips_ms) >= 3 and len(b.round_trips_ms) >= 3, "round trips are told")
        assert all(ms > 0 for ms in a.round_trips_ms + b.round_trips_ms)


@on_both_loops
async def test_a_link_that_falls_silent_is_dropped():
    async with peers(limits=QUICK) as (a, b):
        await a.send(b, b"x")
        await until(lambda: a.round_trips_ms, "the link is in use")
        b.shaper.shape(a.address, cut=True)
        await until(lambda: a.lost == [b.id], "the silence is noticed")
        assert a.stats["links_open"] == 0


@on_both_loops
@pytest.mark.slow
async def test_our_own_late_loop_is_not_the_silence_of_others():
    async with peers(limits=QUICK) as (a, b):
        await a.send(b, b"x")
        await until(lambda: a.round_trips_ms and b.round_trips_ms, "the link is in use")
        for _ in range(3):
            time.sleep(2 * QUICK.silence_s)  # noqa: ASYNC251  The loop is late on purpose.
            before = len(a.round_trips_ms)
            await until(lambda before=before: len(a.round_trips_ms) > before, "the link goes on")
        assert (a.lost, b.lost) == ([], [])


# Addresses and conditions.


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@on_both_loops
async def test_links_work_over_ipv6():
    a = await LinkedPeer().listen("::1")
    b = await LinkedPeer().listen("::1")
    await a.send(b, b"over six")
    await until(lambda: b.received, "it arrives")
    assert b.received == [(a.id, b"over six")]
    assert b.links._current(a.id).address == a.address
    await asyncio.gather(a.links.close(), b.links.close())


@on_both_loops
async def test_a_peer_at_home_on_every_interface_is_known_by_where_it_calls_from():
    a = await LinkedPeer().listen("0.0.0.0")
    async with peers(1) as (b,):
        await a.send(b, b"x")
        await until(lambda: b.received, "it arrives")
        assert b.links._current(a.id).address == ("127.0.0.1", a.address[1])
    await a.links.close()


@on_both_loops
async def test_a_taken_port_is_refused():
    async with peers(1) as (a,):
        other = LinkedPeer()
        with pytest.raises(OSError, match="ddress already in use"):
            await other.listen(port=a.address[1])
        await other.links.close()


@on_both_loops
async def test_links_that_were_closed_can_listen_and_dial_again():
    async with peers() as (a, b):
        await a.links.close()
        await a.listen()
        await a.send(b, b"x")
        await until(lambda: b.received, "it arrives")


@on_both_loops
async def test_a_shaped_delay_is_what_messages_take():
    async with peers() as (a, b):
        await a.send(b, b"link")
        await until(lambda: b.received, "the link is there")
        a.shaper.shape(b.address, delay_ms=60)
        b.shaper.shape(a.address, delay_ms=40)
        b.links.on_control = lambda peer, body: answers.append(asyncio.ensure_future(b.send(a, body)))
        answers: list[asyncio.Future[None]] = []
        took_ms: list[float] = []
        while len(took_ms) < 5 or (min(took_ms) >= 200 and len(took_ms) < 100):  # The machine may hold up some.
            started_at = time.monotonic()
            await a.send(b, b"ask")
            await until(lambda: len(a.received) > len(took_ms), "the answer arrives")
            took_ms.append((time.monotonic() - started_at) * 1000)
        assert 99 <= min(took_ms) < 200


@pytest.mark.slow
@on_both_loops
async def test_a_cut_holds_messages_back_until_it_heals_and_dials_time_out():
    async with peers(3, limits=HASTY) as (a, b, c):
        await a.send(b, b"before")
        await until(lambda: b.received, "it arrives")
        for one, other in ((a, b), (b, a), (a, c)):
            one.shaper.shape(other.address, cut=True)
        for n in range(20):
            await a.send(b, bytes([n]))
        with pytest.raises(LinkError, match=r"no answer within 1\.5 s"):  # Long enough for anything to slip through.
            await a.send(c, b"x")
        assert b.bodies() == [b"before"]
        assert a.stats["links_open"] == 1
        a.shaper.heal()
        b.shaper.heal()
        await until(lambda: len(b.received) == 21, "what was held back arrives")
        assert b.bodies() == [b"before", *(bytes([n]) for n in range(20))]
        a.links.close_peer(c.id)
        await a.send(c, b"healed")
        await until(lambda: c.received, "dials get through")


@pytest.mark.slow
@on_both_loops
async def test_the_silent_side_of_a_one_way_cut_cannot_be_dialled():
    async with peers(limits=HASTY) as (a, b):
        b.shaper.shape(a.address, cut=True)
        with pytest.raises(LinkError, match=r"no answer within 1\.5 s"):
            await a.send(b, b"x")
        b.shaper.heal()
        a.links.close_peer(b.id)
        deadline = time.monotonic() + PATIENCE_S
        while not b.received:
            assert time.monotonic() < deadline
            try:
                await a.send(b, b"x")
            except LinkError as error:
                await asyncio.sleep(error.retry_in_s)
            await asyncio.sleep(0.01)
