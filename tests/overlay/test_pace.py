"""Links that keep a pace: what is configured holds for all of them together, and what is urgent goes first."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from overlay.pace import BURST_S, DEBT_S_MAX, Pace, Paces
from tests.overlay.linked import LinkedPeer, on_both_loops
from tests.overlay.networks import until

RATE = 400_000.0
BODY = bytes(20_000)


class Clock:
    """Stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_is_overdrawn_by_one_use_and_open_again_once_that_is_paid_back():
    clock = Clock()
    pace = Pace(1000.0, clock)
    assert pace.is_open
    pace.use(1000)
    assert not pace.is_open
    assert not pace.is_exhausted
    pace.use(int(1000 * (DEBT_S_MAX + BURST_S)))
    assert pace.is_exhausted
    clock.now += DEBT_S_MAX + 1.1
    assert pace.is_open
    clock.now += 3600
    pace.use(int(1000 * BURST_S))
    assert not pace.is_open, "what was not used for an hour is no credit for the next"


@contextlib.asynccontextmanager
async def linked(receivers: int, sends: Paces = Paces(), receives: Paces = Paces()) -> AsyncIterator[list[LinkedPeer]]:
    """One that sends, and others that get it."""
    made = [LinkedPeer(paces=sends), *(LinkedPeer(paces=receives, seed=n + 1) for n in range(receivers))]
    try:
        for each in made:
            await each.listen()
        for each in made[1:]:
            await made[0].send(each, b"hello")
        await until(lambda: all(each.received for each in made[1:]), "they are linked")
        yield made
    finally:
        await asyncio.gather(*(each.links.close() for each in made))


@on_both_loops
async def test_an_uplink_is_kept_over_all_links_together_and_shared():
    async with linked(2, sends=Paces.of(RATE, None)) as (sender, one, two):
        began_at = time.monotonic()
        sending = [asyncio.create_task(sender.send_bulk(each, BODY)) for _ in range(10) for each in (one, two)]
        await until(lambda: len(one.received) + len(two.received) == 12, "half of it has come")
        assert min(len(one.received), len(two.received)) >= 4, "they take turns"
        await until(lambda: len(one.received) + len(two.received) == 22, "all of it has come")
        took_s = time.monotonic() - began_at
        # All but the last body had to be paid for, but for what may be used at once.
        assert took_s > 19 * len(BODY) / RATE - BURST_S
        await asyncio.gather(*sending)


@on_both_loops
async def test_what_is_urgent_does_not_wait_behind_bulk():
    async with linked(1, sends=Paces.of(RATE, None)) as (sender, receiver):
        sending = [asyncio.create_task(sender.send_bulk(receiver, BODY)) for _ in range(12)]
        await until(lambda: len(receiver.received) > 2, "bulk comes")
        await sender.send(receiver, b"urgent")
        await asyncio.gather(*sending)
        await until(lambda: len(receiver.received) == 14, "all has come")
        assert receiver.bodies().index(b"urgent") < 7


@on_both_loops
async def test_a_downlink_is_kept_and_its_sender_waits():
    async with linked(1, receives=Paces.of(None, RATE)) as (sender, receiver):
        began_at = time.monotonic()
        sending = [asyncio.create_task(sender.send_bulk(receiver, BODY)) for _ in range(20)]
        await until(lambda: len(receiver.received) == 21, "all has come")
        # What was read at once, in one piece, is paid back by whoever comes next.
        assert time.monotonic() - began_at > 18 * len(BODY) / RATE - BURST_S
        await asyncio.gather(*sending)
        assert receiver.stats["links_lost_total"] == sender.stats["links_lost_total"] == 0


async def test_who_leaves_sends_what_waits_for_its_turn():
    async with linked(1, sends=Paces.of(RATE, None)) as (sender, receiver):
        sending = [asyncio.create_task(sender.send_bulk(receiver, BODY)) for _ in range(5)]
        await asyncio.sleep(0)
        await sender.links.drain()
        await asyncio.gather(*sending)
        await until(lambda: len(receiver.received) == 6, "all has come")
