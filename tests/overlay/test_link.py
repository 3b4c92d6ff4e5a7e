"""One link: control, channels and their credit, and what becomes of a member that breaks the rules."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from overlay.channel import Channel, ChannelClosed
from overlay.frames import (
    CHANNELS_MAX,
    CLOSE,
    CONTROL,
    CONTROL_BYTES_MAX,
    CREDIT,
    DATA,
    DATA_BYTES_MAX,
    FRAME_OVERHEAD_BYTES,
    GOODBYE,
    HELLO,
    OPEN,
    PING,
    PONG,
    U32,
    U64,
    Hello,
    OpenChannel,
    encode,
)
from overlay.links import LinkLimits
from overlay.outbox import LinkError
from protocols.versions import VERSIONS
from tests.overlay.linked import RawMember, frame, on_both_loops, peers
from tests.overlay.networks import PATIENCE_S, until
from tests.seeds import draw_seed

WINDOW = 64 << 10


async def drain_all(channel: Channel) -> list[bytes]:
    """Everything that arrives until the channel ends."""
    bodies = []
    try:
        while True:
            bodies.append(await channel.recv())
            channel.done(len(bodies[-1]))
    except ChannelClosed:
        return bodies


@on_both_loops
async def test_control_messages_go_both_ways_over_one_link_in_order():
    async with peers() as (a, b):
        sent = [bytes([n % 256]) * n for n in range(300)]
        for body in sent:
            await a.send(b, body)
        await until(lambda: len(b.received) == 300, "all messages arrive")
        await b.send(a, b"and back")
        await until(lambda: a.received, "the answer arrives")
        assert b.received == [(a.id, body) for body in sent]
        assert a.received == [(b.id, b"and back")]
        assert [(peer.stats["links_dialled_total"], peer.stats["links_accepted_total"]) for peer in (a, b)] == [
            (1, 0),
            (0, 1),
        ]


@on_both_loops
async def test_neither_side_of_a_link_lets_the_kernel_wait_for_more_to_send():
    async with peers() as (a, b):
        await a.send(b, b"link")
        await until(lambda: b.received, "the link is there")
        for one, other in ((a, b), (b, a)):
            connection = one.links._current(other.id)._transport.get_extra_info("socket")
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@on_both_loops
async def test_the_largest_control_message_passes_and_a_larger_one_is_our_own_mistake():
    async with peers() as (a, b):
        body = random.Random(1).randbytes(CONTROL_BYTES_MAX)
        await a.send(b, body)
        await until(lambda: b.received, "it arrives")
        assert b.bodies() == [body]
        with pytest.raises(ValueError, match="is over the"):
            await a.send(b, bytes(CONTROL_BYTES_MAX + 1))
        assert a.stats["links_open"] == 1


@on_both_loops
async def test_a_sender_stops_at_the_window_until_the_consumer_is_done():
    async with peers() as (a, b):
        ours, theirs = await a.open(b, WINDOW)
        body = bytes(1024)
        fits = -(-WINDOW // (len(body) + FRAME_OVERHEAD_BYTES))
        for _ in range(fits):
            await ours.send(body)
        assert ours.try_send(body) is False
        taken = [await theirs.recv() for _ in range(fits)]
        await a.send(b, b"received is not done")
        await until(lambda: b.received, "control passes a full channel")
        assert ours.try_send(body) is False
        theirs.done(sum(map(len, taken)))
        async with asyncio.timeout(PATIENCE_S):
            await ours.send(body)
            assert await theirs.recv() == body


@on_both_loops
async def test_bodies_as_large_as_the_window_pass_and_the_buffer_shrinks_again():
    async with peers() as (a, b):
        ours, theirs = await a.open(b, DATA_BYTES_MAX)
        sizes = (DATA_BYTES_MAX, 1, DATA_BYTES_MAX - 1, 0, 70_000)
        bodies = [random.Random(n).randbytes(size) for n, size in enumerate(sizes)]

        async def send() -> None:
            for body in bodies:
                await ours.send(body)
            ours.close()

        sending = asyncio.create_task(send())
        assert await drain_all(theirs) == bodies
        await sending
        await until(lambda: len(theirs.link._view) == 32 << 10, "the receive buffer is small again")


@on_both_loops
async def test_a_body_larger_than_its_window_or_than_a_frame_is_our_own_mistake():
    async with peers() as (a, b):
        for window, limit in ((WINDOW, WINDOW), (2 * DATA_BYTES_MAX, DATA_BYTES_MAX)):
            ours, _ = await a.open(b, window)
            with pytest.raises(ValueError, match=f"is over .*{limit} bytes"):
                ours.try_send(bytes(limit + 1))
            assert ours.try_send(bytes(limit))


@on_both_loops
async def test_a_channel_that_nobody_reads_slows_neither_another_nor_control():
    async with peers() as (a, b):
        stuck, _ = await a.open(b)
        ours, theirs = await a.open(b)
        stuck_sender = asyncio.create_task(_send_forever(stuck))
        await until(lambda: stuck._credit <= 0, "the stuck channel has used its window")

        async def send() -> None:
            for n in range(2000):
                await ours.send(n.to_bytes(2, "big") * 2048)
            ours.close()

        sending = asyncio.create_task(send())
        consuming = asyncio.create_task(drain_all(theirs))
        await a.send(b, b"control")
        await until(lambda: b.received, "control arrives")
        assert [body[:2] for body in await consuming] == [n.to_bytes(2, "big") for n in range(2000)]
        await sending
        assert stuck._credit <= 0
        stuck_sender.cancel()


async def _send_forever(channel: Channel) -> None:
    while True:
        await channel.send(bytes(1000))


@on_both_loops
async def test_what_was_sent_before_a_close_arrives_and_then_the_channel_ends_on_both_sides():
    async with peers() as (a, b):
        ours, theirs = await a.open(b)
        for n in range(10):
            await ours.send(bytes([n]))
        ours.close()
        assert await drain_all(theirs) == [bytes([n]) for n in range(10)]
        for channel in (ours, theirs):
            assert channel.closed
            with pytest.raises(ChannelClosed):
                await channel.send(b"late")
            with pytest.raises(ChannelClosed):
                await channel.recv()
        await until(lambda: a.stats["link_channels_open"] == b.stats["link_channels_open"] == 0, "it is forgotten")


@on_both_loops
async def test_a_consumer_that_closes_frees_a_sender_that_waits():
    async with peers() as (a, b):
        ours, theirs = await a.open(b)
        sending = asyncio.create_task(_send_forever(ours))
        await until(lambda: ours._credit <= 0, "the window is used up")
        theirs.close()
        with pytest.raises(ChannelClosed, match="by the other side"):
            await sending
        await a.send(b, b"the link lives")
        await until(lambda: b.received, "control arrives")


@on_both_loops
async def test_both_sides_open_and_close_channels_at_will_and_numbers_are_used_again():
    async with peers() as (a, b):
        rng = random.Random(5)
        await a.send(b, b"link")
        for _ in range(CHANNELS_MAX + 100):
            (ours, theirs) = await (a.open(b) if rng.random() < 0.5 else b.open(a))
            await ours.send(b"x")
            assert await theirs.recv() == b"x"
            for channel in rng.choice([(ours,), (theirs,), (ours, theirs)]):
                channel.close()
        await until(lambda: a.stats["link_channels_open"] == b.stats["link_channels_open"] == 0, "all are forgotten")
        link = await a.links.link(b.id, b.address)
        assert link._next_number < 200
        assert a.stats["link_protocol_errors_total"] == b.stats["link_protocol_errors_total"] == 0


@on_both_loops
async def test_channels_of_a_link_are_limited_at_the_side_that_opens_them():
    async with peers() as (a, b):
        link = await a.links.link(b.id, b.address)
        for _ in range(CHANNELS_MAX):
            link.open("test", 1000)
        with pytest.raises(LinkError, match="already has 1024 channels"):
            link.open("test", 1000)
        await until(lambda: b.channels.qsize() == CHANNELS_MAX, "the other side accepts them all")


@on_both_loops
async def test_a_receiver_holds_no_more_for_a_link_than_it_can_spare_whatever_is_opened():
    async with peers(1, limits=LinkLimits(channel_bytes_max=4 * WINDOW)) as (a,), peers(1) as (b,):
        pairs = [await b.open(a, WINDOW) for _ in range(4)]
        refused = [(await b.links.link(a.id, a.address)).open("test", WINDOW) for _ in range(6)]
        for channel in refused:  # Each sends what it may before it hears that it was refused.
            channel.try_send(bytes(WINDOW))
        for channel in refused:
            with pytest.raises(ChannelClosed, match="by the other side"):
                await channel.recv()
        assert a.channels.empty()
        assert a.stats["link_channels_refused_total"] == 6
        for ours, _ in pairs:
            await ours.send(bytes(WINDOW - FRAME_OVERHEAD_BYTES - 1))
            await ours.send(bytes(WINDOW))
        await until(lambda: all(len(theirs._inbox) == 2 for _, theirs in pairs), "all channels are full")
        assert a.stats["link_protocol_errors_total"] == 0
        with pytest.raises(LinkError, match="is over the 0 left"):
            (await a.links.link(b.id, b.address)).open("test", 1)


@on_both_loops
async def test_a_channel_counts_until_it_is_closed_here_or_read_to_its_end():
    async with peers(1, limits=LinkLimits(channel_bytes_max=WINDOW)) as (a,), peers(1) as (b,):

        async def is_refused() -> bool:
            channel = (await b.links.link(a.id, a.address)).open("test", WINDOW)
            await until(lambda: channel.closed or not a.channels.empty(), "it is refused or accepted")
            return channel.closed

        ours, theirs = await b.open(a, WINDOW)
        await ours.send(b"unread")
        ours.close()
        await until(lambda: theirs.closed, "the other side has closed it")
        assert await is_refused()
        assert await drain_all(theirs) == [b"unread"]
        assert not await is_refused()
        (await a.channels.get()).close()
        assert not await is_refused()


@on_both_loops
async def test_no_credit_piles_up_for_a_member_that_does_not_read_it():
    async with peers(1) as (a,):
        member = await RawMember().dial(a.address)
        member.writer.write(OPENED)
        channel = await a.channels.get()
        link = channel.link
        link.pause_writing()  # As when the member has not read for long.
        member.writer.write(frame(DATA, bytes(400), 1) * 3)
        for _ in range(3):
            channel.done(len(await channel.recv()))
            assert link._outbox._first_bytes == 0
        link.resume_writing()
        frames = [await member.read_frame()]
        while frames[-1][0] != CREDIT:
            frames.append(await member.read_frame())
        assert frames[-1] == (CREDIT, 1, U32.pack(3 * (400 + FRAME_OVERHEAD_BYTES)))
        link.pause_writing()
        member.writer.write(frame(DATA, bytes(400), 1) * 3)
        for _ in range(3):
            channel.done(len(await channel.recv()))
        member.writer.write(frame(DATA, bytes(400), 1))
        assert await member.ended()
        assert a.stats["link_protocol_errors_total"] == 1
        await member.hang_up()


@on_both_loops
async def test_a_member_that_opens_and_closes_and_never_reads_is_cut_off():
    async with peers(1) as (a,):
        a.links.on_channel = Channel.close
        member = await RawMember().dial(a.address)
        a.links._current(member.identity.peer_id).pause_writing()  # As when the member has not read for long.
        for _ in range(100):
            member.writer.write((OPENED + frame(CLOSE, channel=1)) * 100)
            await asyncio.sleep(0)
        await until(lambda: a.lost, "the link is dropped")
        assert a.stats["link_protocol_errors_total"] == 1
        await member.hang_up()


@on_both_loops
async def test_a_channel_needs_a_name_of_reasonable_length_and_a_window():
    async with peers() as (a, b):
        link = await a.links.link(b.id, b.address)
        for service, window in (("", 1000), ("x" * 101, 1000), ("test", 0), ("test", 1 << 30)):
            with pytest.raises(ValueError, match="no channel can be opened"):
                link.open(service, window)
        assert link.channels_open == 0


@on_both_loops
async def test_a_send_that_is_cancelled_while_it_waits_has_sent_nothing():
    async with peers() as (a, b):
        ours, theirs = await a.open(b, window=100)
        await ours.send(bytes(100))
        waiting = [asyncio.create_task(ours.send(bytes([n]))) for n in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.gather(waiting[1], return_exceptions=True)
        assert await theirs.recv() == bytes(100)
        theirs.done(100)
        await waiting[0]
        for _ in range(2):
            theirs.done(len(await theirs.recv()))
        await waiting[2]
        ours.close()
        assert await drain_all(theirs) == []
        assert waiting[1].cancelled()


@on_both_loops
async def test_a_channel_breaks_with_its_link():
    async with peers() as (a, b):
        ours, theirs = await a.open(b)
        await ours.send(b"first")
        await until(lambda: theirs._inbox, "it has arrived")
        ours.link.abort("test")
        assert await theirs.recv() == b"first"
        for channel in (ours, theirs):
            with pytest.raises(LinkError) as caught:
                await channel.recv()
            assert not isinstance(caught.value, ChannelClosed)


@on_both_loops
async def test_senders_of_control_wait_for_a_peer_that_does_not_read():
    async with peers(1) as (a,):
        member = await RawMember().dial(a.address)
        link = a.links._links[member.identity.peer_id][0]
        member.writer.transport.pause_reading()
        body, accepted = bytes(64 << 10), 0

        async def send() -> None:
            nonlocal accepted
            for _ in range(400):
                await link.control(body)
                accepted += 1

        sending = asyncio.create_task(send())
        await until(lambda: link._outbox._control, "a sender waits")
        held = link._transport.get_write_buffer_size() + link._outbox._first_bytes
        assert held < 1 << 20
        assert accepted < 400
        member.writer.transport.resume_reading()
        count = 0
        while count < 400:
            count += (await member.read_frame())[0] == CONTROL
        await sending
        await member.hang_up()


@on_both_loops
async def test_goodbye_comes_after_all_control_messages_that_were_waiting():
    async with peers(1) as (a,):
        member = await RawMember().dial(a.address)
        link = a.links._links[member.identity.peer_id][0]
        member.writer.transport.pause_reading()
        sending = [asyncio.create_task(link.control(n.to_bytes(2, "big") * (32 << 10))) for n in range(200)]
        await until(lambda: link._outbox.is_blocked and link._outbox._control, "senders wait")
        assert not all(task.done() for task in sending)
        link.goodbye()
        with pytest.raises(LinkError, match="is closed"):
            await link.control(b"too late")
        member.writer.transport.resume_reading()
        frames = [await member.read_frame()]
        while frames[-1][0] != GOODBYE:
            frames.append(await member.read_frame())
        assert [int.from_bytes(body[:2], "big") for kind, _, body in frames if kind == CONTROL] == list(range(200))
        await asyncio.gather(*sending)
        await member.hang_up()


HELLO_FRAME = frame(HELLO, encode(Hello("", 0, dict(VERSIONS))))
OPENED = frame(OPEN, encode(OpenChannel("test", 1000)), 1)
VIOLATIONS = {
    "unknown type": frame(11),
    "type zero": frame(0),
    "flags": frame(PING, U64.pack(1), flags=1),
    "second HELLO": HELLO_FRAME,
    "oversize control": frame(CONTROL, length=CONTROL_BYTES_MAX + 1),
    "oversize data": OPENED + frame(DATA, channel=1, length=DATA_BYTES_MAX + 1),
    "four gigabytes": frame(DATA, length=0xFFFF_FFFF),
    "control on a channel": frame(CONTROL, b"x", 1),
    "short ping": frame(PING, b"1234567"),
    "data without a channel": frame(DATA, b"x", 1),
    "data on the link": frame(DATA, b"x", 0),
    "credit without a channel": frame(CREDIT, U32.pack(1), 1),
    "close without a channel": frame(CLOSE, channel=1),
    "credit nobody used": OPENED + frame(CREDIT, U32.pack(1), 1),
    "more than the window": OPENED + frame(DATA, bytes(1000), 1) + frame(DATA, b"x", 1),
    "a body larger than the window": OPENED + frame(DATA, bytes(1001), 1),
    "many empty bodies": OPENED + frame(DATA, b"", 1) * 20,
    "our channel number": frame(OPEN, encode(OpenChannel("test", 1000)), 2),
    "channel zero": frame(OPEN, encode(OpenChannel("test", 1000)), 0),
    "channel number too high": frame(OPEN, encode(OpenChannel("test", 1000)), 2 * CHANNELS_MAX + 1),
    "opened twice": OPENED + OPENED,
    "OPEN is no msgpack": frame(OPEN, b"\xc1\xc1", 1),
    "OPEN is deep": frame(OPEN, b"\x91" * 500, 1),
    "OPEN has bad text": frame(OPEN, b"\x92\xa2\xff\xfe\x01", 1),
    "OPEN has no service": frame(OPEN, b"\x92\xa0\x01", 1),
    "OPEN has trailing bytes": frame(OPEN, encode(OpenChannel("test", 1000)) + b"x", 1),
    "control after GOODBYE": frame(GOODBYE) + frame(CONTROL, b"x"),
}


@pytest.mark.parametrize("what", VIOLATIONS)
@on_both_loops
async def test_a_member_that_breaks_the_rules_loses_its_link_and_nobody_else_does(what):
    async with peers() as (a, b):
        await b.send(a, b"before")
        member = await RawMember().dial(a.address)
        if what == "control after GOODBYE":  # With a channel open, both GOODBYEs do not close the link yet.
            member.writer.write(OPENED)
        member.writer.write(VIOLATIONS[what])
        assert await member.ended()
        await until(lambda: a.lost == [member.identity.peer_id] or what == "control after GOODBYE", "the loss is told")
        assert a.stats["link_protocol_errors_total"] == 1
        await b.send(a, b"after")
        await until(lambda: len(a.received) == 2, "the others go on")
        assert a.received == [(b.id, b"before"), (b.id, b"after")]
        await member.hang_up()


@on_both_loops
async def test_the_first_frame_must_be_hello():
    async with peers(1) as (a,):
        for first in (
            frame(CONTROL, b"x"),
            frame(HELLO, b"\x93\xa0\x01\x02"),
            frame(HELLO, b"\x92\xa0\xcd\xff\xff", 3),
        ):
            member = await RawMember().dial(a.address, greet=False)
            member.writer.write(first)
            assert await member.ended()
            await member.hang_up()
        await until(lambda: a.stats["link_accepts_refused_total"] == 3, "all are refused")
        assert (a.received, a.stats["links_accepted_total"], a.stats["link_protocol_errors_total"]) == ([], 0, 3)


@on_both_loops
async def test_a_member_that_asks_and_never_reads_the_answers_is_cut_off():
    async with peers(1) as (a,):
        member = await RawMember().dial(a.address)
        member.writer.transport.pause_reading()
        pings = frame(PING, U64.pack(1)) * 10_000
        for _ in range(2000):
            if a.lost:
                break
            member.writer.write(pings)
            await asyncio.sleep(0)
        await until(lambda: a.lost, "the link is dropped")
        assert a.stats["link_protocol_errors_total"] == 1
        await member.hang_up()


def random_frames(rng: random.Random) -> bytes:
    """Frames that look right at first sight: known types, low channel numbers, bodies of about the right size."""
    kinds = [CONTROL, OPEN, DATA, CREDIT, CLOSE, PING, PONG, GOODBYE, HELLO, rng.randrange(256)]
    parts = []
    for _ in range(rng.randrange(1, 30)):
        kind = rng.choice(kinds)
        body = rng.choice([b"", rng.randbytes(4), rng.randbytes(8), rng.randbytes(rng.randrange(200))])
        if kind == OPEN and rng.random() < 0.7:
            body = encode(OpenChannel("x", rng.randrange(1, 5000)))
        length = rng.choice([None] * 9 + [rng.randrange(1 << 32)])
        parts.append(frame(kind, body, rng.choice([0, 0, 1, 1, 2, 3, 65535]), length=length))
    return b"".join(parts)


@on_both_loops
async def test_random_frames_after_the_handshake_end_the_link_and_nothing_else():
    seed = draw_seed()
    rng = random.Random(seed)
    async with peers() as (a, b):
        member = RawMember()
        for n in range(150):
            await member.dial(a.address)
            member.writer.write(random_frames(rng) if n % 3 else rng.randbytes(rng.randrange(1, 2000)))
            if rng.random() < 0.5:
                member.writer.write_eof() if member.writer.can_write_eof() else member.writer.close()
            await member.hang_up()
        await until(lambda: a.stats["links_open"] + a.stats["links_leaving"] == 0, "all of its links end")
        assert a.stats["link_channels_open"] == 0
        await b.send(a, b"still there")
        await until(lambda: (b.id, b"still there") in a.received, "the others go on")
