"""The data socket from both sides: a real gateway and real clients, with the test in the place of the machines."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from peerd import gateway as gateway_module
from peerd.client.session import ConnectionLost, PeerRefused, Session
from peerd.client.subscription import Subscription
from peerd.datadir import DataDir
from peerd.errors import Exit, PeerError
from peerd.exchange import RESPONSE_BYTES_MAX, FrameReader, Request, Response, frame
from peerd.gateway import Gateway
from protocols.catalogue.messages import ListStreams, ShowStream, StreamsListed
from protocols.catalogue.streams import StreamDefinition
from protocols.delivery.messages import (
    Batch,
    DeadLettered,
    Missed,
    Opened,
    OpenSubscription,
    Origin,
    Position,
    Publish,
    Published,
    Refuse,
    Rows,
    Seen,
)
from protocols.events import Abandoned, Disconnected, Event, Requested
from protocols.ids import PeerId
from protocols.messages import Answer, Refused
from protocols.rights.messages import Authenticate, Authenticated
from protocols.wire import ANSWERS, COMMANDS
from queries.schema import Schema

DEADLINE_S = 60.0
SCHEMA = Schema.parse("n int")
HERE = Origin(PeerId(bytes(20)), "numbers", 1)
THERE = Origin(PeerId(bytes([1]) * 20), "numbers", 1)


class Machines:
    """What the gateway talks to: the test sees each event and answers when it likes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self.is_running = True
        self.life = b""
        self.gateway: Gateway

    async def open(self) -> None:
        self.path.unlink(missing_ok=True)
        self.gateway = Gateway(self.events.append, lambda: self.is_running)
        self.gateway.life = self.life
        await self.gateway.open(self.path)

    def crash(self) -> None:
        self.gateway.close()
        self.path.unlink()

    async def asked(self, kind: type, count: int = 1) -> Requested:
        """The next request of a kind, once there are so many."""

        def found() -> list[Requested]:
            return [each for each in self.events if isinstance(each, Requested) and isinstance(each.command, kind)]

        await until(lambda: len(found()) >= count)
        return found()[count - 1]

    def answer(self, asked: Requested, answer: Answer, *, last: bool = True) -> None:
        self.gateway.reply(asked.request, answer, last)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
async def machines(tmp_path: Path) -> AsyncIterator[Machines]:
    machines = Machines(tmp_path / "data.sock")
    await machines.open()
    yield machines
    machines.gateway.close()


@contextlib.asynccontextmanager
async def session_of(machines: Machines, patience_s: float = DEADLINE_S) -> AsyncIterator[Session]:
    session = Session(DataDir(machines.path.parent), machines.path, patience_s=patience_s)
    await session.open()
    yield session
    await session.close()


def batch(origin: Origin, first: int, *numbers: int) -> Batch:
    return Batch(origin, first, len(numbers), 0, SCHEMA.encode([(number,) for number in numbers]))


def subscription(session: Session) -> Subscription:
    async def schema(stream: str) -> StreamDefinition:
        return StreamDefinition(name=stream, schema=SCHEMA)

    return Subscription(
        session,
        "numbers",
        schema,
        name="s",
        since="now",
        keep=False,
        positions={},
        witness=lambda stamp: stamp,
    )


async def test_requests_are_answered_in_any_order(machines: Machines):
    async with session_of(machines) as session:
        first = asyncio.ensure_future(session.ask(Publish(stream="a", rows=b"", count=1)))
        second = asyncio.ensure_future(session.ask(Publish(stream="b", rows=b"", count=2)))
        await machines.asked(Publish, 2)
        machines.answer(await machines.asked(Publish, 2), Published(first=0, count=2, stamp=2))
        assert await second == Published(first=0, count=2, stamp=2)
        assert not first.done()
        machines.answer(await machines.asked(Publish, 1), Published(first=0, count=1, stamp=1))
        assert await first == Published(first=0, count=1, stamp=1)


async def test_the_socket_belongs_to_its_user_alone(machines: Machines):
    assert stat.S_IMODE(machines.path.stat().st_mode) == 0o600


async def test_a_refusal_is_raised_with_its_facts(machines: Machines):
    async with session_of(machines) as session:
        asking = asyncio.ensure_future(session.ask(ListStreams()))
        refused = Refused(code="unknown", error='no stream "a"', detail="Asked 3.", hint="Look.")
        machines.answer(await machines.asked(ListStreams), refused)
        with pytest.raises(PeerRefused) as caught:
            await asking
        assert str(caught.value) == 'error: no stream "a"\ndetail: Asked 3.\nhint: Look.'
        assert (caught.value.code, caught.value.exit_code) == ("unknown", Exit.NOT_FOUND)


async def test_a_busy_peer_is_asked_again(machines: Machines):
    async with session_of(machines) as session:
        asking = asyncio.ensure_future(session.ask(ListStreams()))
        machines.answer(await machines.asked(ListStreams), Refused(code="busy", error="busy", retry_after_ms=1))
        machines.answer(await machines.asked(ListStreams, 2), StreamsListed(streams=()))
        assert await asking == StreamsListed(streams=())


@pytest.mark.slow
async def test_a_peer_that_is_no_member_yet_asks_for_patience(machines: Machines):
    machines.is_running = False
    async with session_of(machines, patience_s=2) as session:
        with pytest.raises(PeerRefused, match="not a member of its network yet"):
            await session.ask(ListStreams())
    assert machines.events == []


async def test_a_peer_that_never_answers_is_a_timeout(machines: Machines):
    async with session_of(machines, patience_s=0.1) as session:
        with pytest.raises(PeerError) as caught:
            await session.ask(ListStreams())
        assert caught.value.exit_code == Exit.TIMEOUT


async def test_what_a_client_asked_is_abandoned_when_it_hangs_up(machines: Machines):
    async with session_of(machines) as session:
        await session.post(ListStreams(), lambda answer, last: None)
        asked = await machines.asked(ListStreams)
    await until(lambda: machines.events[-1] == Abandoned(asked.request, is_broken=True))
    machines.answer(asked, StreamsListed(streams=()))  # Too late, and no harm.
    assert machines.gateway.clients == 0


async def test_what_may_be_repeated_is_asked_again_after_a_crash(machines: Machines):
    async with session_of(machines) as session:
        publish = asyncio.ensure_future(session.ask(Publish(stream="a", rows=b"", count=1)))
        careful = asyncio.ensure_future(session.ask(Publish(stream="b", rows=b"", count=1), "same life"))
        question = asyncio.ensure_future(session.ask(ListStreams(), "always"))
        await machines.asked(ListStreams)
        machines.crash()
        with pytest.raises(ConnectionLost):
            await publish
        await machines.open()
        machines.answer(await machines.asked(ListStreams, 2), StreamsListed(streams=()))
        assert await question == StreamsListed(streams=())
        again = await machines.asked(Publish, 3)
        assert again.command == Publish(stream="b", rows=b"", count=1)
        machines.crash()
        machines.life = b"two"
        await machines.open()
        with pytest.raises(ConnectionLost, match="without its memory"):
            await careful


async def test_a_peer_that_does_not_come_back_is_given_up(machines: Machines):
    async with session_of(machines, patience_s=0.2) as session:
        await until(lambda: machines.gateway.clients == 1)
        machines.crash()
        with pytest.raises(PeerError) as caught:
            await session.ask(ListStreams(), "always")
        assert caught.value.exit_code in (Exit.UNREACHABLE, Exit.TIMEOUT)


async def test_a_client_that_floods_is_read_no_further_until_it_has_answers(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gateway_module, "UNANSWERED_BYTES_MAX", 1 << 20)
    rows = bytes(100_000)
    async with session_of(machines) as session:
        asking = [asyncio.ensure_future(session.ask(Publish(stream="a", rows=rows, count=1))) for _ in range(100)]
        await until(lambda: len(machines.events) >= 11)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert len(machines.events) < 30, "about 1 MiB of them, and what one read brings"
        for place in range(100):
            machines.answer(await machines.asked(Publish, place + 1), Published(first=place, count=1, stamp=0))
        assert [answer.first for answer in await asyncio.gather(*asking)] == list(range(100))


@pytest.mark.parametrize("command", [b"\x01\x91", b"\x07?", COMMANDS.encode(ShowStream(name="x" * 2000))])
async def test_a_command_that_makes_no_sense_is_refused(machines: Machines, command: bytes):
    reader, writer = await asyncio.open_unix_connection(str(machines.path))
    responses: FrameReader[Response] = FrameReader(Response, RESPONSE_BYTES_MAX)
    writer.write(frame(Request(7, command)) + frame(Request(8, COMMANDS.encode(ListStreams()))))
    machines.answer(await machines.asked(ListStreams), StreamsListed(streams=()))
    found: dict[int, Answer] = {}
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < 2:
            for response in responses.feed(await reader.read(1 << 16)):
                if response.id:
                    found[response.id] = ANSWERS.decode(response.answer)
    writer.close()
    refused = found[7]
    assert isinstance(refused, Refused)
    assert (refused.code, refused.error) == ("invalid", "this peer does not understand the command")
    assert found[8] == StreamsListed(streams=()), "the connection goes on"


@pytest.mark.parametrize("rubbish", [b"\xff\xff\xff\xff", b"\x01\0\0\0\xc1"])
async def test_rubbish_ends_its_own_connection_alone(machines: Machines, rubbish: bytes):
    async with session_of(machines) as session:
        reader, writer = await asyncio.open_unix_connection(str(machines.path))
        writer.write(rubbish)
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()
        asking = asyncio.ensure_future(session.ask(ListStreams()))
        machines.answer(await machines.asked(ListStreams), StreamsListed(streams=()))
        await asking


async def test_a_subscription_brings_rows_and_says_what_it_has_seen(machines: Machines):
    async with session_of(machines) as session:
        reading = subscription(session)
        opening = asyncio.ensure_future(reading.open())
        asked = await machines.asked(OpenSubscription)
        machines.answer(asked, Opened(subscription="s", stamp=7), last=False)
        await opening
        machines.answer(asked, Rows(batches=(batch(HERE, 5, 10, 11), batch(THERE, 0, 20))), last=False)
        rows = aiter(reading)
        assert [(await anext(rows)).n for _ in range(3)] == [10, 11, 20]
        reading.close()
        seen = await machines.asked(Seen)
        assert seen.command == Seen(subscription="s", positions=(Position(HERE, 7), Position(THERE, 1)))
        await until(lambda: machines.events[-1] == Abandoned(asked.request))


async def test_a_row_whose_processing_failed_is_not_behind_the_program(machines: Machines):
    async with session_of(machines) as session:
        reading = await _opened(machines, session)
        asked = await machines.asked(OpenSubscription)
        machines.answer(asked, Rows(batches=(batch(HERE, 0, 10, 11, 12),)), last=False)

        async def program() -> None:
            async with reading:
                async for row in reading:
                    assert row.n != 11, "the program fails"

        with pytest.raises(AssertionError):
            await program()
        assert reading.positions == {HERE: 1}
        assert (await machines.asked(Seen)).command == Seen(subscription="s", positions=(Position(HERE, 1),))
        refused = (await machines.asked(Refuse)).command
        assert isinstance(refused, Refuse)
        assert (refused.origin, refused.first, refused.next) == (HERE, 1, 2)
        assert refused.reason.startswith("AssertionError: the program fails")
        await until(lambda: machines.events[-1] == Abandoned(asked.request))  # In peace: it counts once.


async def test_a_refused_row_comes_again_until_it_is_put_aside(machines: Machines):
    async with session_of(machines) as session:
        reading = await _opened(machines, session)
        asked = await machines.asked(OpenSubscription)
        machines.answer(asked, Rows(batches=(batch(HERE, 0, 10, 11, 12), batch(THERE, 0, 20))), last=False)
        machines.answer(asked, Rows(batches=(batch(HERE, 3, 13),)), last=False)
        rows = aiter(reading)
        assert [(await anext(rows)).n for _ in range(2)] == [10, 11]
        reading.refuse("not this one")
        refused = await machines.asked(Refuse)
        assert refused.command == Refuse(subscription="s", origin=HERE, first=1, next=2, reason="not this one")
        assert (await anext(rows)).n == 20
        machines.answer(asked, Rows(batches=(batch(HERE, 4, 14),)), last=False)  # Sent before: it will come again.
        machines.answer(asked, Rows(batches=(batch(HERE, 1, 11),)), last=False)
        assert (await anext(rows)).n == 11
        reading.refuse("no")
        machines.answer(asked, DeadLettered(origin=HERE, sequence=1, reason="no"), last=False)
        machines.answer(asked, Rows(batches=(batch(HERE, 2, 12, 13, 14),)), last=False)
        assert [(await anext(rows)).n for _ in range(3)] == [12, 13, 14]
        assert reading.dead_lettered == 1
        reading.close()
        with pytest.raises(ValueError, match="no row to refuse"):
            reading.refuse("nothing in hand")


async def test_a_refused_batch_is_refused_as_a_whole(machines: Machines):
    async with session_of(machines) as session:
        reading = await _opened(machines, session)
        asked = await machines.asked(OpenSubscription)
        machines.answer(asked, Rows(batches=(batch(HERE, 0, 10, 11, 12),)), last=False)
        batches = reading.batches()
        await anext(batches)
        reading.refuse("one of them")
        refused = await machines.asked(Refuse)
        assert refused.command == Refuse(subscription="s", origin=HERE, first=0, next=3, reason="one of them")
        machines.answer(asked, Rows(batches=(batch(HERE, 0, 10),)), last=False)
        assert (await anext(batches)).rows == [(10,)]


async def test_after_a_crash_reading_goes_on_where_the_program_stands(machines: Machines):
    """In the middle of a batch, with another one waiting: nothing comes twice, nothing is left out."""
    async with session_of(machines) as session:
        reading = await _opened(machines, session)
        asked = await machines.asked(OpenSubscription)
        machines.answer(asked, Rows(batches=(batch(HERE, 0, 10, 11, 12), batch(HERE, 3, 13, 14))), last=False)
        rows = aiter(reading)
        got = [(await anext(rows)).n]
        machines.crash()
        await machines.open()
        again = await machines.asked(OpenSubscription, 2)
        assert again.command == OpenSubscription(stream="numbers", subscription="s", since=7, positions=())
        machines.answer(again, Opened(subscription="s", stamp=9), last=False)
        resent = Rows(batches=(batch(HERE, 0, 10, 11, 12), batch(HERE, 3, 13, 14), batch(HERE, 4, 14, 15)))
        machines.answer(again, resent, last=False)
        got += [(await anext(rows)).n for _ in range(5)]
        assert got == [10, 11, 12, 13, 14, 15]
        reading.close()


async def test_missed_tuples_are_counted_in_their_place(machines: Machines):
    async with session_of(machines) as session:
        reading = await _opened(machines, session)
        told: list[Missed] = []
        reading.on_missed = told.append
        asked = await machines.asked(OpenSubscription)
        machines.answer(asked, Rows(batches=(batch(HERE, 0, 10),)), last=False)
        machines.answer(asked, Missed(origin=HERE, first=1, next=5), last=False)
        machines.answer(asked, Rows(batches=(batch(HERE, 5, 15),)), last=False)
        rows = aiter(reading)
        assert [(await anext(rows)).n for _ in range(2)] == [10, 15]
        assert (reading.missed, told) == (4, [Missed(origin=HERE, first=1, next=5)])
        reading.close()


async def test_a_stream_that_is_dropped_ends_its_readers(machines: Machines):
    async with session_of(machines) as session:
        reading = await _opened(machines, session)
        asked = await machines.asked(OpenSubscription)
        machines.answer(asked, Rows(batches=(batch(HERE, 0, 10),)), last=False)
        machines.answer(asked, Refused(code="unknown", error='no stream "numbers"'))
        rows = aiter(reading)
        assert (await anext(rows)).n == 10
        with pytest.raises(PeerRefused, match="no stream"):
            await anext(rows)


async def _opened(machines: Machines, session: Session) -> Subscription:
    reading = subscription(session)
    opening = asyncio.ensure_future(reading.open())
    machines.answer(await machines.asked(OpenSubscription), Opened(subscription="s", stamp=7), last=False)
    await opening
    return reading


async def test_a_token_is_presented_before_anything_is_asked_and_again_after_a_break(machines: Machines):
    session = Session(DataDir(machines.path.parent), machines.path, patience_s=DEADLINE_S, token="ann.secret")
    opening = asyncio.create_task(session.open())
    presented = await machines.asked(Authenticate)
    machines.answer(presented, Refused(code="unavailable", error="not yet", retry_after_ms=1))
    presented = await machines.asked(Authenticate, 2)
    assert presented.command == Authenticate(token="ann.secret")
    machines.answer(presented, Authenticated(client="ann"))
    await opening
    asking = asyncio.create_task(session.ask(ListStreams(), "always"))
    assert (await machines.asked(ListStreams)).connection == presented.connection > 0
    machines.crash()
    await machines.open()
    again = await machines.asked(Authenticate, 3)
    assert not any(isinstance(each, Requested) and each.command == ListStreams() for each in machines.events[-1:])
    machines.answer(again, Authenticated(client="ann"))
    machines.answer(await machines.asked(ListStreams, 2), StreamsListed(streams=()))
    assert await asking == StreamsListed(streams=())
    await session.close()
    await until(lambda: Disconnected(again.connection) in machines.events)


async def test_a_token_that_is_refused_ends_the_session(machines: Machines):
    session = Session(DataDir(machines.path.parent), machines.path, patience_s=DEADLINE_S, token="ann.wrong")
    opening = asyncio.create_task(session.open())
    machines.answer(await machines.asked(Authenticate), Refused(code="forbidden", error="it is not good"))
    with pytest.raises(PeerRefused, match="it is not good"):
        await opening
    await session.close()
