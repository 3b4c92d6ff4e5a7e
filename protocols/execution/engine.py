"""Between a subgraph and the engine that runs it: what the engine is to do (effects), and what it reports (events)."""

from __future__ import annotations

from protocols.effects import Effect
from protocols.events import Event
from queries.plan import Operator
from queries.schema import Row

RunId = str
"""One subgraph in one attempt of its query, at one peer."""


class StartRun(Effect, frozen=True):
    """Have the engine run a plan. It reports RunStarted or RunFailed."""

    run: RunId
    plan: Operator
    closed_until_us: int | None  # An earlier attempt has handed on the windows that end by then.


class FeedRun(Effect, frozen=True):
    """Hand rows of one source to a run, numbered from 1 over all its sources. It reports RunResults.

    Old rows (`is_new` is false) are for state only: an earlier attempt has handed on the results of old rows alone.
    """

    run: RunId
    number: int
    alias: str
    rows: tuple[Row, ...]  # As the source's columns say.
    is_new: bool
    watermark_us: int | None  # Once these rows are in: windows that end by then are complete.
    floor_us: int | None  # No row before this time is to come for any source: older state may be forgotten.


class StopRun(Effect, frozen=True):
    """The run is over; nothing more of it is wanted."""

    run: RunId


class WarmEngine(Effect, frozen=True):
    """Start the engine, though there is no run for it yet. It reports EngineTried, also if it was ready before."""


class RunStarted(Event, frozen=True):
    """The engine takes rows."""

    run: RunId


class RunResults(Event, frozen=True):
    """All results of the rows up to `number` that no earlier RunResults had."""

    run: RunId
    number: int
    rows: tuple[Row, ...]


class RunState(Event, frozen=True):
    """How many rows a run keeps as its state; reported now and then."""

    run: RunId
    rows: int


class RunFailed(Event, frozen=True):
    """The engine cannot run it, or has lost what it had."""

    run: RunId
    reason: str


class EngineTried(Event, frozen=True):
    """The engine of this peer is ready; or it could not be started, for a reason."""

    reason: str = ""
