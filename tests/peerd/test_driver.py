"""The driver with a real overlay and real files: nothing is promised before the disk has it; a fault stops it all."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from pathlib import Path

import pytest

from overlay import router as router_module
from peerd import driver as driver_module
from peerd.disk import FileDisk
from peerd.driver import Driver
from protocols.delivery.messages import OpenSubscription, Published, PublisherNews, Rows
from protocols.events import ClockCompared, Event, Received, Requested
from protocols.ids import PeerId
from protocols.journal.disk import DiskFull
from protocols.journal.journal import Journal
from protocols.messages import Answer, Done, Refused
from protocols.wire import MESSAGES
from tests.overlay.networks import PATIENCE_S, started, until
from tests.peerd.desk import SCHEMA, Desk, create, publish, running


@pytest.mark.slow
async def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path):
    async with started(1) as (overlay,):
        async with running(overlay, tmp_path) as desk:
            assert isinstance(await desk.answer(create("a")), Done)
            assert isinstance(await desk.answer(publish("a", 1, 2)), Published)
            assert isinstance(await desk.answer(publish("a", 3)), Published)
        async with running(overlay, tmp_path) as desk:
            assert await read_all(desk, "a", 3) == [1, 2, 3]


async def read_all(desk: Desk, stream: str, count: int) -> list[int]:
    """What a stream keeps, from its start, once there is so much of it."""
    reading = desk.ask(OpenSubscription(stream=stream, subscription=f"all of {stream}", since="start"))

    def read() -> list[int]:
        answers = [answer for answer in desk.answers[reading] if isinstance(answer, Rows)]
        return [row[0] for rows in answers for batch in rows.batches for row in SCHEMA.decode(batch.rows)]

    await until(lambda: len(read()) >= count, "the tuples of before")
    return read()


@pytest.mark.slow
async def test_the_disk_follows_what_streams_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stream that keeps a second of tuples beside one that keeps a day: two thirds of the journal are waste."""
    segment_bytes = 4096
    monkeypatch.setattr(driver_module, "Journal", functools.partial(Journal, segment_bytes=segment_bytes))
    async with started(1) as (overlay,):
        async with running(overlay, tmp_path) as desk:
            await desk.answer(create("slow"))
            await desk.answer(create("fast", retention_ms=1000))
            for number in range(200):
                await desk.answer(publish("slow", number))
                await desk.answer(publish("fast", *range(number * 100, number * 100 + 100)))
            fast = desk.driver._peer.publisher.outboxes["fast"].feed
            await until(lambda: fast.first == fast.next == 20_000, "nothing of the fast one is kept")

            def is_small() -> bool:
                return files_bytes(tmp_path) <= 2 * desk.driver.journal_kept_bytes + segment_bytes

            await until(is_small, "the disk follows")
            assert files_bytes(tmp_path) < 50_000, "a part of 100,000 bytes and more"
            assert await read_all(desk, "slow", 200) == list(range(200))
        async with running(overlay, tmp_path) as desk:
            await until(lambda: desk.driver.journal_bytes == files_bytes(tmp_path), "what is said is there")
            assert await read_all(desk, "slow", 200) == list(range(200))


def files_bytes(path: Path) -> int:
    size = 0
    for pattern in ("segment-*", "snapshot-*"):
        for file in path.glob(pattern):
            with contextlib.suppress(FileNotFoundError):  # The driver has just removed it.
                size += file.stat().st_size
    return size


async def test_publishes_that_come_together_are_committed_together(tmp_path: Path):
    async with started(1) as (overlay,), running(overlay, tmp_path) as desk:
        await desk.answer(create("a"))
        await desk.answer(publish("a", 0))
        before = desk.driver.counters["commits_total"]
        numbers = [desk.ask(publish("a", number)) for number in range(500)]
        await until(lambda: all(desk.answers[number] for number in numbers), "all answers")
        assert [desk.answers[number][0].first for number in numbers] == list(range(1, 501))
        assert desk.driver.counters["commits_total"] - before < 20


@pytest.mark.slow
async def test_nothing_is_acknowledged_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver_module, "DISK_FULL_RETRY_S", 0.02)
    async with started(1) as (overlay,), running(overlay, tmp_path) as desk:
        await desk.answer(create("a"))
        await desk.answer(publish("a", 0))
        tries = 0

        def full(_disk: FileDisk, name: str, _data: bytes) -> None:
            nonlocal tries
            tries += 1
            raise DiskFull(f"no room for {name}")

        with monkeypatch.context() as patched:
            patched.setattr(FileDisk, "append", full)
            waiting = desk.ask(publish("a", 1))
            await until(lambda: tries >= 3, "it tries again")
            assert desk.answers[waiting] == []
        await until(lambda: desk.answers[waiting], "there is room again")
        assert isinstance(desk.answers[waiting][0], Published)


async def test_a_machine_that_fails_stops_the_driver_and_leaves_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    async with started(1) as (overlay,), running(overlay, tmp_path) as desk:
        await desk.answer(create("a"))
        handle = desk.driver._peer.handle

        def broken(event: Event, now: int) -> list[object]:
            assert not isinstance(event, Requested), "this machine is broken"
            return handle(event, now)

        monkeypatch.setattr(desk.driver._peer, "handle", broken)
        desk.ask(publish("a", 1))
        await asyncio.wait([desk.driver.failure], timeout=PATIENCE_S)
        with pytest.raises(AssertionError, match="this machine is broken"):
            desk.driver.failure.result()
        assert not desk.driver.is_running
    told = capsys.readouterr().out
    assert "a protocol machine failed; the peer stops" in told
    assert "Publish(stream='a'" in told, "the event that broke it is in the trace"


async def test_an_event_that_holds_the_loop_is_counted_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    async with started(1) as (overlay,), running(overlay, tmp_path) as desk:
        handle = desk.driver._peer.handle

        def slow(event: Event, now: int) -> list[object]:
            if isinstance(event, Requested):
                until_at = time.monotonic() + driver_module.LONG_S
                while time.monotonic() <= until_at:
                    pass
            return handle(event, now)

        monkeypatch.setattr(desk.driver._peer, "handle", slow)
        before = desk.driver.counters["events_long_total"]
        await desk.answer(create("a"))
        assert desk.driver.counters["events_long_total"] > before
        assert desk.driver.stats()["event_longest_seconds"] > driver_module.LONG_S
    assert "an event held the loop" in capsys.readouterr().out


async def test_a_malformed_message_is_dropped_and_counted(tmp_path: Path):
    async with started(1) as (overlay,), running(overlay, tmp_path) as desk:
        for rubbish in (b"", b"\x01", b"\x02\x90", b"\x01\x91\xa4NOPE", bytes(100)):
            overlay.router.on_message(PeerId(bytes(20)), None, rubbish)
        assert desk.driver.counters["messages_malformed_total"] == 4
        assert desk.driver.counters["messages_unknown_total"] == 1
        assert isinstance(await desk.answer(create("a")), Done)


async def test_a_member_that_sends_faster_than_anybody_can_read_is_not_read_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What waits of one member is bounded; what others send is read meanwhile."""
    monkeypatch.setattr(driver_module, "WAITING_BYTES_MAX", 100_000)
    async with started(2) as (overlay, other), running(overlay, tmp_path) as desk:
        driver, router, sender = desk.driver, overlay.router, other.peer_id
        handle, held = driver._peer.handle, True
        heard = Counter[PeerId]()

        def counted(event: Event, now: int) -> list[object]:
            if isinstance(event, Received):
                heard[event.sender] += 1
            return handle(event, now)

        monkeypatch.setattr(driver._peer, "handle", counted)
        monkeypatch.setattr(driver, "_turn_soon", lambda: None if held else Driver._turn_soon(driver))
        news = MESSAGES.encode(PublisherNews(stream="x" * 1000))
        for number in range(100):
            body = router_module._encode(router_module.Deliver(b"bootboot", number, [(b"", news)]))
            router._read(sender, body)
        taken = 100 - router.counters["frames_refused_total"]
        assert taken == pytest.approx(100_000 / (len(news) + driver_module.MESSAGE_BYTES), abs=1)
        assert driver._waiting == {sender: taken * (len(news) + driver_module.MESSAGE_BYTES)}
        assert router.has_room(PeerId(bytes(20)))
        held = False
        driver._turn_soon()
        await until(lambda: heard[sender] == taken, "what was taken is read")
        assert router.has_room(sender)
        assert not driver._waiting
        router._read(sender, router_module._encode(router_module.Deliver(b"bootboot", 100, [(b"", news)])))
        await until(lambda: heard[sender] == taken + 1, "and so is what comes next")


@pytest.mark.slow
async def test_a_peer_whose_clock_is_set_wrong_refuses_to_publish_until_it_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(driver_module, "CLOCK_LOOK_EVERY_S", 0.02)
    async with started(1) as (overlay,), running(overlay, tmp_path) as desk:
        await desk.answer(create("a"))
        clock = ClockCompared(2000, 3)
        monkeypatch.setattr(overlay, "clock", lambda: clock)
        answers: list[Answer] = []
        while not answers or not isinstance(answers[-1], Refused):
            answers.append(await desk.answer(publish("a", 1)))
        assert "2000 ms ahead of 3 others" in answers[-1].detail
        clock = ClockCompared(0, 3)
        while isinstance(answers[-1], Refused):
            answers.append(await desk.answer(publish("a", 1)))
