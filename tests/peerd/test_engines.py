"""Queries in a driver with a real overlay and real files: some need no engine, the others survive that it dies."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from overlay.overlay import Overlay
from peerd.cli.look import spark_sentence
from peerd.disk import FileDisk
from peerd.driver import Driver
from protocols.catalogue.messages import ListStreams, StreamsListed
from protocols.delivery.messages import OpenSubscription, Rows
from protocols.events import Abandoned
from protocols.execution.messages import (
    ListQueries,
    QueriesListed,
    QueryAccepted,
    QueryShown,
    QueryStarting,
    ShowQuery,
    StopQuery,
    SubmitQuery,
)
from protocols.limits import Limits
from protocols.messages import Done, Refused
from tests.overlay.networks import started, until
from tests.peerd.desk import Desk, create, publish
from tests.peerd.engine import Maker, TellingEngine

pytestmark = pytest.mark.slow

JOIN = "SELECT a.n FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR] WHERE a.n = b.n"


@contextlib.asynccontextmanager
async def running(
    overlay: Overlay, path: Path, engines: list[TellingEngine] | None = None, lacks: Sequence[str] = ()
) -> AsyncIterator[Desk]:
    """A driver whose engine is put into the list when it is made; without a list it has none.

    `lacks` has what a look finds missing, if anything, and a test may change it.
    """

    def make(listener: object) -> TellingEngine:
        assert engines is not None
        engines.append(TellingEngine(listener))  # type: ignore[arg-type]
        return engines[-1]

    with FileDisk(path) as disk:
        maker = None if engines is None else Maker(make, lacks)
        driver = Driver(overlay, disk, random.Random(1), Limits(), maker)
        await driver.recover()
        await driver.engines.look()
        driver.begin()
        yield Desk(driver)
        await driver.stop()


async def submitted(desk: Desk, text: str) -> QueryAccepted:
    asked = desk.ask(SubmitQuery(text=text, name="q"))
    await until(lambda: len(desk.answers[asked]) == 2, "the query is accepted")
    starting, accepted = desk.answers[asked]
    assert isinstance(starting, QueryStarting)
    assert isinstance(accepted, QueryAccepted)
    return accepted


class Reader:
    """Collects what a query brings."""

    def __init__(self, desk: Desk, accepted: QueryAccepted) -> None:
        self._desk, self._schema = desk, accepted.schema
        self._asked = desk.ask(OpenSubscription(stream=accepted.stream, subscription="reader", since="start"))

    def rows(self) -> list[tuple[object, ...]]:
        answers = [answer for answer in self._desk.answers[self._asked] if isinstance(answer, Rows)]
        return [row for rows in answers for batch in rows.batches for row in self._schema.decode(batch.rows)]

    async def has(self, *rows: tuple[object, ...]) -> None:
        await until(lambda: len(self.rows()) >= len(rows), f"{len(rows)} rows")
        assert self.rows() == list(rows)


async def test_a_query_without_state_makes_no_engine(tmp_path: Path):
    engines: list[TellingEngine] = []
    async with started(1, engines=[0]) as (overlay,), running(overlay, tmp_path, engines) as desk:
        await desk.answer(create("a"))
        results = Reader(desk, await submitted(desk, "SELECT n * 2 AS twice FROM a WHERE n > 1"))
        await desk.answer(publish("a", 1, 2, 3))
        await results.has((4,), (6,))
        assert not engines
        assert desk.driver.engines.status() == {"state": "off", "missing": ""}


async def test_a_join_goes_on_after_its_engine_died_and_tells_nothing_twice(tmp_path: Path):
    engines: list[TellingEngine] = []
    async with started(1, engines=[0]) as (overlay,), running(overlay, tmp_path, engines) as desk:
        await desk.answer(create("a"))
        await desk.answer(create("b"))
        results = Reader(desk, await submitted(desk, JOIN))
        await desk.answer(publish("a", 1, 2, 3))
        await desk.answer(publish("b", 2))
        await results.has((2,))
        (engine,) = engines
        engine.fail("it had enough")
        await desk.answer(publish("b", 3))
        await results.has((2,), (3,))
        await desk.answer(publish("b", 1))
        await results.has((2,), (3,), (1,))
        shown = await desk.answer(ShowQuery(query="q"))
        assert isinstance(shown, QueryShown)
        assert "it had enough" in shown.reason
        assert desk.driver.engines.status() == {"state": "ready", "runs": 1, "missing": ""}
        assert isinstance(await desk.answer(StopQuery(query="q")), Done)
        assert not engine.runs
    assert engine.is_closed


async def test_where_no_peer_has_spark_a_join_is_refused_at_once(tmp_path: Path):
    async with started(1) as (overlay,), running(overlay, tmp_path) as desk:
        await desk.answer(create("a"))
        await desk.answer(create("b"))
        asked = desk.ask(SubmitQuery(text=JOIN, name="q"))
        await until(lambda: bool(desk.answers[asked]), "an answer")
        (refused,) = desk.answers[asked]
        assert isinstance(refused, Refused)
        assert refused.error == 'query "q" cannot run: it needs Spark, and no peer here has it'
        await nothing_left(desk)
        assert desk.driver.engines.status() == {"state": "none"}


async def test_a_query_whose_client_went_before_the_acknowledgement_is_ended(tmp_path: Path):
    async with started(1) as (overlay,), running(overlay, tmp_path) as desk:
        await desk.answer(create("a"))
        asked = desk.ask(SubmitQuery(text="SELECT n FROM a", name="q"))
        desk.driver.submit(Abandoned(asked))
        await nothing_left(desk)


async def nothing_left(desk: Desk) -> None:
    """Neither a query nor the stream of its results."""
    left = QueriesListed(queries=())
    while await desk.answer(ListQueries()) != left:
        pass
    streams = await desk.answer(ListStreams())
    assert isinstance(streams, StreamsListed)
    assert not [each.name for each in streams.streams if each.name.startswith("q.")]


def test_the_state_of_spark_is_said_in_a_sentence():
    failed = {"state": "off", "last_failure": "no Java was found"}
    ready = {"state": "ready", "spark": "4.3.0", "java": "17.0.15", "master": "local", "runs": {"q": {}}}
    assert [
        spark_sentence({"state": "none"}),
        spark_sentence({"state": "off", "last_failure": ""}),
        spark_sentence(failed),
        spark_sentence({"state": "off", "missing": "no Java was found"}),
        spark_sentence({"state": "starting", "waits_for": "looking for Java"}),
        spark_sentence({**ready, "memory_bytes": 600 << 20}),
    ] == [
        "none: this peer runs without",
        "starts when needed",
        "off; it failed, and is tried again: no Java was found",
        "cannot be started: no Java was found",
        "starting (looking for Java)",
        "4.3.0 on Java 17.0.15, local, 1 run, 600 MB",
    ]


async def test_an_engine_that_cannot_be_started_is_not_offered_to_others_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("peerd.engines.AGAIN_MIN_S", 0.05)
    engines: list[TellingEngine] = []
    async with (
        started(2, engines=[0]) as (overlay, other),
        running(other, tmp_path / "other"),
        running(overlay, tmp_path / "one", engines) as desk,
    ):
        seen = lambda: [each.has_engine for each in other.members() if each.peer_id == overlay.peer_id]  # noqa: E731
        await until(lambda: seen() == [True], "the other one hears that there is an engine")
        desk.driver.engines.warm()
        engines[0].trouble = "no Java was found"
        await until(lambda: seen() == [False], "the other one hears that there is none")
        await until(lambda: engines[0].warmed >= 2, "it is tried again")
        for name in ("a", "b"):
            await desk.answer(create(name))
        refused = await desk.answer(SubmitQuery(text=JOIN, name="q"))
        assert isinstance(refused, Refused)
        assert "This one cannot start it: no Java was found." in refused.detail
        engines[0].trouble = ""
        await until(lambda: seen() == [True], "the other one hears that there is one again")
        await submitted(desk, JOIN)


async def test_an_engine_that_could_not_be_started_is_not_offered_and_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A daemon looks for what is missing, and goes on without; once it is there, the engine is offered."""
    monkeypatch.setattr("peerd.engines.LOOK_EVERY_S", 0.02)
    engines: list[TellingEngine] = []
    lacks = ["no Java was found"]
    async with (
        started(2, engines=[0]) as (overlay, other),
        running(other, tmp_path / "other"),
        running(overlay, tmp_path / "one", engines, lacks) as desk,
    ):
        seen = lambda: [each.has_engine for each in other.members() if each.peer_id == overlay.peer_id]  # noqa: E731
        await until(lambda: seen() == [False], "the other one hears that there is no engine")
        desk.driver.engines.keep_warm()
        for name in ("a", "b"):
            await desk.answer(create(name))
        refused = await desk.answer(SubmitQuery(text=JOIN, name="q"))
        assert isinstance(refused, Refused)
        assert "This one cannot start it: no Java was found." in refused.detail
        assert desk.driver.engines.status() == {"state": "off", "missing": "no Java was found"}
        assert not engines
        lacks.clear()
        await until(lambda: seen() == [True], "the other one hears that there is one now")
        await until(lambda: bool(engines and engines[0].warmed), "it is started, since that was wanted")
        await submitted(desk, JOIN)
