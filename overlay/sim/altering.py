"""Streams that are altered while queries run: which columns there are when, who publishes which, and what is due.

`left_side` gets a column. `right_side` gets one, loses one that nobody reads, and gets another of the same name.
Queries of before keep the columns they had; queries of afterwards see all rows by the columns there are then.
Publishers hear of an alteration sooner or later, and go on by the columns they know until then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from overlay.sim.oracle import Violation
from protocols.catalogue.messages import AlterStream
from protocols.ids import Millis
from protocols.messages import Answer, Done, Refused
from queries.catalogue import Stream
from queries.expressions import EPOCH
from queries.schema import Field, Row, Schema

if TYPE_CHECKING:
    from overlay.sim.peer import SimPeer

_FIRST: Final = Schema.parse("number int, spare string, part int, at timestamp")
_EXTRA: Final = Field("extra", "int", nullable=True)
_SPARE: Final = Field("spare", "float", nullable=True)
STEPS: Final = {
    "left_side": (AlterStream(name="left_side", adds=_EXTRA),),
    "right_side": (
        AlterStream(name="right_side", adds=_EXTRA),
        AlterStream(name="right_side", drops="spare"),
        AlterStream(name="right_side", adds=_SPARE),
    ),
}
STREAMS: Final = {name: Stream(name, _FIRST, "at") for name in STEPS}
BEFORE: Final = (
    "SELECT * FROM left_side",
    "SELECT number, part FROM right_side WHERE part <> 2",
    "SELECT part, count(*) AS rows FROM right_side [RANGE 3 SECONDS SLIDE 3 SECONDS] GROUP BY part",
    "SELECT a.number, b.number AS other, a.spare FROM left_side a, left_side b WHERE a.part = b.part AND a.number < 9",
    "SELECT number FROM left_side WHERE spare <> 's4' UNION ALL SELECT number FROM right_side",
)
AFTER: Final = (
    "SELECT * FROM left_side WHERE number <> 3",
    "SELECT * FROM right_side WHERE number <> 4",
    "SELECT number, extra, spare FROM right_side WHERE spare IS NULL OR spare > 2",
    "SELECT extra, count(*) AS rows FROM right_side [RANGE 4 SECONDS SLIDE 4 SECONDS] GROUP BY extra",
    "SELECT a.number, b.number AS other FROM left_side a, left_side b WHERE a.extra = b.extra AND a.part = b.part",
    "SELECT a.number, b.extra FROM left_side a, left_side b WHERE a.part = b.part AND a.number < 7",
)
REFUSED: Final = AlterStream(name="left_side", drops="spare")  # While a query of before reads it.
HEARD_SHARE: Final = 0.3  # Of the publishes begin with a look at the columns.
_RETRY_MS: Final[Millis] = 300


def _versions(stream: str) -> list[Schema]:
    versions = [_FIRST]
    for step in STEPS[stream]:
        versions.append(versions[-1].altered(step.adds, step.drops))
    return versions


VERSIONS: Final = {name: _versions(name) for name in STEPS}
LAST: Final = {name: Stream(name, versions[-1], "at") for name, versions in VERSIONS.items()}


def streams_for(text: str) -> dict[str, Stream]:
    """The streams as a query was planned with them."""
    return STREAMS if text in BEFORE else LAST


@dataclass(slots=True)
class Altering:
    """The client that alters, one step after the other, each until it is acknowledged."""

    rng: random.Random
    some_peer: Callable[[], SimPeer | None]
    later: Callable[[Millis, Callable[[], None]], None]
    then: Callable[[], None]
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEPS, 0))
    was_refused: bool = False
    _known: dict[tuple[str, int], int] = field(default_factory=dict)  # How many steps each source has heard of.

    @property
    def is_over(self) -> bool:
        return self.was_refused and all(count == len(STEPS[stream]) for stream, count in self.done.items())

    def begin(self) -> None:
        for stream in STEPS:
            self.later(self.rng.randrange(3_000), lambda stream=stream: self._step(stream))  # type: ignore[misc]
        self.later(self.rng.randrange(3_000), self._try_to_drop)

    def _step(self, stream: str) -> None:
        def answered(answer: Answer | None, last: bool) -> None:
            # Asked again after an answer that was lost, it may be there, or gone, already.
            is_done = isinstance(answer, Done) or (isinstance(answer, Refused) and answer.code in ("exists", "unknown"))
            if not is_done:
                self.later(_RETRY_MS, lambda: self._step(stream))
                return
            self.done[stream] += 1
            if self.done[stream] < len(STEPS[stream]):
                self.later(self.rng.randrange(2_000), lambda: self._step(stream))
            elif self.is_over:
                self.then()

        self._ask(STEPS[stream][self.done[stream]], answered, lambda: self._step(stream))

    def _try_to_drop(self) -> None:
        """A column that a query reads is not dropped."""

        def answered(answer: Answer | None, last: bool) -> None:
            if isinstance(answer, Done):
                raise Violation("a column was dropped that a query reads")
            if not (isinstance(answer, Refused) and "is read" in answer.error):
                self.later(_RETRY_MS, self._try_to_drop)
                return
            self.was_refused = True
            if self.is_over:
                self.then()

        self._ask(REFUSED, answered, self._try_to_drop)

    def _ask(
        self, command: AlterStream, answered: Callable[[Answer | None, bool], None], again: Callable[[], None]
    ) -> None:
        peer = self.some_peer()
        if peer is None:
            self.later(_RETRY_MS, again)
        else:
            peer.request(command, answered)

    # What is published, and what queries see of it.

    def schema(self, stream: str, source: int) -> Schema:
        """The columns by which a source writes its next row."""
        if self.rng.random() < HEARD_SHARE:
            self._known[stream, source] = self.done[stream]
        return VERSIONS[stream][self._known.get((stream, source), 0)]

    def row(self, schema: Schema, number: int, at: timedelta) -> Row:
        values: dict[str, Any] = {"number": number, "part": number % 3, "at": EPOCH + at, "extra": number % 5}
        values["spare"] = number / 2 if _SPARE in schema.fields else f"s{number}"
        return tuple(values[field.name] for field in schema.fields)

    def seen(self, text: str, stream: str, written: Schema, row: Row) -> Row:
        """A row as a query sees it. A name that came again is another column."""
        values = dict(zip(written.fields, row, strict=True))
        return tuple(values.get(each) for each in streams_for(text)[stream].schema.fields)
