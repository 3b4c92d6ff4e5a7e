"""The past of streams, read from the peers that keep it and written as recordings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from protocols.catalogue.streams import StreamDefinition
from protocols.clock import COUNT_BITS, Stamp
from protocols.delivery.messages import Missed, Origin
from spark_jobs.recordings import Recorder

if TYPE_CHECKING:
    from peerd.client import Client

QUIET_S: Final = 2.0  # If nothing comes for so long, everything kept has come.


class Gathering:
    """Reads what streams published between two times, each into a file of a folder."""

    def __init__(self, client: Client, folder: Path, since: Literal["start"] | Stamp, until: Stamp) -> None:
        self._client, self._folder, self._since, self._until = client, folder, since, until
        self.rows: dict[str, int] = {}  # Per stream, so far.
        self.missed: dict[str, int] = {}  # Tuples of that time that nobody keeps any more.
        self.unfit: dict[str, int] = {}  # Tuples with decimals that an earlier release accepted and no query reads.
        self.on_rows: Callable[[], None] = lambda: None

    async def gather(self, streams: Iterable[StreamDefinition]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in streams:
                tasks.create_task(self._read(each))

    async def _read(self, definition: StreamDefinition) -> None:
        name = definition.name
        self.rows[name] = self.missed[name] = self.unfit[name] = 0
        recorder = Recorder(self._folder, definition.stream())
        try:
            await self._record(definition, recorder)
        except BaseException:
            recorder.drop()
            raise
        recorder.close()

    async def _record(self, definition: StreamDefinition, recorder: Recorder) -> None:
        """A publisher is done with its first batch that is too young; the others when nothing more comes."""
        done: dict[Origin, None] = {}
        name = definition.name
        subscription = self._client.subscribe(name, since=self._since, schema=definition.current)
        subscription.on_missed = lambda missed: self._note_missed(name, missed)
        async with subscription:
            publishers = {
                Origin(each.peer, name, each.epoch): None for each in (await self._client.stream(name)).publishers
            }
            batches, clock = subscription.batches(), asyncio.get_running_loop().time
            quiet_at = clock() + QUIET_S
            with suppress(TimeoutError):
                while not publishers or len(done) < len(publishers | done):
                    async with asyncio.timeout_at(quiet_at):
                        batch = await anext(batches)
                    if batch.published_at > self._until:
                        done[batch.origin] = None
                        continue
                    origin = f"{batch.origin.publisher.hex()}/{batch.origin.epoch}"
                    recorder.add(origin, batch.first, (batch.published_at >> COUNT_BITS) * 1000, batch.rows)
                    self.rows[name], self.unfit[name] = recorder.rows, recorder.unfit
                    self.on_rows()
                    quiet_at = clock() + QUIET_S

    def _note_missed(self, name: str, missed: Missed) -> None:
        self.missed[name] += missed.next - missed.first
