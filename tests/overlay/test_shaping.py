"""Shaped conditions: rules, their precedence, and streams that stay in order however late they are."""

from __future__ import annotations

import asyncio
import random
import socket

from overlay.shaping import RETRANSMISSION_S, ShapedWriter, Shaper
from tests.overlay.linked import on_both_loops
from tests.overlay.networks import until
from tests.seeds import draw_seed

HERE = ("127.0.0.1", 7401)
THERE = ("127.0.0.1", 7402)


def test_an_address_without_a_rule_of_its_own_follows_the_general_rule():
    shaper = Shaper(random.Random(1))
    assert shaper.stream_delay_s(HERE) == 0.0
    shaper.shape(delay_ms=30)
    shaper.shape(HERE, cut=True)
    assert (shaper.is_cut(HERE), shaper.is_cut(THERE)) == (True, False)
    assert (shaper.stream_delay_s(HERE), shaper.stream_delay_s(THERE)) == (0.0, 0.03)


def test_healing_an_address_leaves_the_general_rule_and_healing_all_leaves_none():
    shaper = Shaper(random.Random(1))
    shaper.shape(delay_ms=30)
    shaper.shape(HERE, cut=True)
    shaper.heal(HERE)
    assert (shaper.is_cut(HERE), shaper.stream_delay_s(HERE)) == (False, 0.03)
    shaper.heal()
    assert shaper.stream_delay_s(HERE) == 0.0


def test_a_lost_datagram_is_gone_and_a_lost_segment_is_late():
    shaper = Shaper(random.Random(1))
    shaper.shape(delay_ms=10, loss=1.0)
    assert shaper.datagram_delay_s(HERE) is None
    assert shaper.stream_delay_s(HERE) == 0.01 + RETRANSMISSION_S
    shaper.shape(cut=True)
    assert shaper.datagram_delay_s(HERE) is None


def test_loss_and_jitter_are_as_frequent_and_as_large_as_asked_and_follow_the_seed():
    def draw() -> list[float | None]:
        shaper = Shaper(random.Random(7))
        shaper.shape(delay_ms=100, jitter=0.5, loss=0.2)
        return [shaper.datagram_delay_s(HERE) for _ in range(2000)]

    drawn = draw()
    kept = [delay_s for delay_s in drawn if delay_s is not None]
    assert 300 < drawn.count(None) < 500
    assert 0.1 <= min(kept) < 0.11
    assert 0.14 < max(kept) <= 0.15
    assert drawn == draw()


@on_both_loops
async def test_a_shaped_stream_keeps_its_order_and_closes_last():
    seed = draw_seed()
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    shaper = Shaper(random.Random(seed))
    shaper.shape(HERE, delay_ms=5, jitter=4.0)
    shaped = ShapedWriter(shaper, HERE, transport, lambda: None)
    for n in range(200):
        shaped.write(n.to_bytes(2, "big"))
    shaped.close()
    assert await reader.read() == b"".join(n.to_bytes(2, "big") for n in range(200))
    writer.close()


@on_both_loops
async def test_a_cut_stream_holds_its_bytes_says_when_it_is_full_and_lets_go_when_healed():
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    shaper = Shaper(random.Random(1))
    shaper.shape(HERE, cut=True)
    room: list[None] = []
    shaped = ShapedWriter(shaper, HERE, transport, lambda: room.append(None))
    written = 0
    while not shaped.full:
        shaped.write(bytes(1 << 18))
        written += 1 << 18
    assert transport.get_write_buffer_size() == 0
    assert room == []
    shaper.heal(HERE)
    assert len(await reader.readexactly(written)) == written
    await until(lambda: room == [None], "the stream says that it has room again")
    transport.abort()
    writer.close()
