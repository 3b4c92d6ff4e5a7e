"""What asks a driver and collects its answers, and the commands that tests ask it."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path

from overlay.overlay import Overlay
from peerd.disk import FileDisk
from peerd.driver import Driver
from protocols.catalogue.messages import CreateStream
from protocols.catalogue.streams import StreamDefinition
from protocols.delivery.messages import Publish
from protocols.events import Requested
from protocols.ids import Millis, RequestId
from protocols.limits import Limits
from protocols.messages import Answer, Command
from queries.schema import Schema
from tests.overlay.networks import until

SCHEMA = Schema.parse("n int")


class Desk:
    """Asks a driver and collects its answers, as the gateway does."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.answers: dict[RequestId, list[Answer]] = {}
        self._numbers = itertools.count(1)
        driver.on_reply = self._reply

    def ask(self, command: Command) -> RequestId:
        number = next(self._numbers)
        self.answers[number] = []
        self.driver.submit(Requested(number, command))
        return number

    async def answer(self, command: Command) -> Answer:
        number = self.ask(command)
        await until(lambda: self.answers[number], f"an answer to {command}")
        return self.answers[number][0]

    def _reply(self, request: RequestId, answer: Answer, _last: bool) -> None:
        self.answers[request].append(answer)


@contextlib.asynccontextmanager
async def running(overlay: Overlay, path: Path) -> AsyncIterator[Desk]:
    with FileDisk(path) as disk:
        driver = Driver(overlay, disk, random.Random(1), Limits())
        await driver.recover()
        driver.begin()
        yield Desk(driver)
        await driver.stop()


def create(name: str, retention_ms: Millis = 24 * 3600 * 1000) -> CreateStream:
    return CreateStream(definition=StreamDefinition(name=name, schema=SCHEMA, retention_ms=retention_ms))


def publish(name: str, *numbers: int) -> Publish:
    return Publish(stream=name, rows=SCHEMA.encode([(number,) for number in numbers]), count=len(numbers))
