"""One subgraph running at one peer: rows in from streams and flows, through an engine, results out in order."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from types import MappingProxyType

import msgspec

from protocols.catalogue.streams import Reads
from protocols.delivery.messages import Batch, Missed, Position, Publishers, Silence
from protocols.delivery.needs import EVERYBODY
from protocols.effects import Effect
from protocols.execution.aggregation import Aggregations, View, WindowRun
from protocols.execution.cut import is_stateful
from protocols.execution.engine import FeedRun, RunId, StartRun
from protocols.execution.flow_rows import decode_rows
from protocols.execution.inline import Step, pipelines
from protocols.execution.late_values import LateValues, windowed_by_value
from protocols.execution.progress import InputClock
from protocols.ids import Millis, as_count
from protocols.part import Part, latest_of, parts_of
from protocols.sharing.tap import Passed, Some
from protocols.sieve import selected
from protocols.subgraphs import (
    NOTHING,
    PATIENCE_MS,
    Deploy,
    Flow,
    FlowInput,
    Inline,
    Input,
    InputStatus,
    Progress,
    Reach,
    StreamInput,
    SubgraphStatus,
    Vector,
    merged,
)
from queries import restructure
from queries.expressions import EPOCH, MICROSECOND, Expression
from queries.plan import (
    Nest,
    Operator,
    Restructure,
    Source,
    WindowAggregate,
    horizon_us,
    last_result_us,
    sources,
    walk,
)
from queries.reads import columns_read
from queries.schema import Row
from queries.slices import time_at


class RunOutput(msgspec.Struct, frozen=True):
    """Rows to hand on, and the progress they account for."""

    rows: Sequence[Row]
    is_new: bool
    progress: Progress
    reached: Progress | None  # Of all that was handed on so far. None: the replay of an earlier attempt is not done.


class _Waiting(msgspec.Struct, frozen=True):
    """An input handed to the engine, and the progress that its results account for."""

    number: int
    is_new: bool
    progress: Progress
    watermark_us: int | None
    floor_us: int | None
    has_replayed: bool
    alias: str
    acknowledges: int | tuple[Position, ...]  # The flow's next sequence, or the stream's positions.


class SubgraphRun:
    """The state of one subgraph in one attempt.

    Invariant: results leave in the order of the inputs; `reached` covers only inputs whose results have left
    """

    def __init__(self, deploy: Deploy, run_id: RunId, now: Millis, aggregations: Aggregations | None = None) -> None:
        self.deploy, self.run_id = deploy, run_id
        subgraph = deploy.subgraph
        patience_ms = max(
            (each.patience_ms for each in subgraph.inputs if isinstance(each, StreamInput)), default=PATIENCE_MS
        )
        self._patient_until = now + patience_ms  # Then rows that an earlier attempt has read are not waited for.
        self.plan: Operator = subgraph.plan  # What the engine runs; the XML shape of results is made here.
        self._shape = None
        if isinstance(subgraph.plan, Restructure):
            self.plan, self._shape = subgraph.plan.input, restructure.on_batch(subgraph.plan)
        self.columns = self.plan.columns
        self.sources = {each.alias: each for each in sources(self.plan)}
        self.is_stateful = is_stateful(self.plan)
        self.is_inline = isinstance(subgraph.engine, Inline)
        # Without state here or behind it, nothing waits for a window to close.
        self.goes_by_time = self.is_stateful or subgraph.consumer is not None
        self._tells_old = subgraph.tells_old
        self._mixed = [each.alias for each in subgraph.inputs if isinstance(each, FlowInput) and each.is_mixed]
        marks = 1 if self._tells_old else 0  # Streams do not carry the mark; it is added here.
        streams = [self.sources[each.alias] for each in subgraph.inputs if isinstance(each, StreamInput)]
        self._schemas = {each.alias: each.schema.without_last(marks) for each in streams}
        self._is_ranked = any(each.window is not None and each.window.kind == "rows" for each in self.sources.values())
        self._steps = self._steps_behind = dict[str, Step]()
        self.windows: WindowRun | None = None
        if self.is_inline and self.is_stateful:
            known = aggregations if aggregations is not None else Aggregations()
            self.windows = known.enter(run_id, self.plan, deploy.resume.watermark_us, self._views())
        elif self.is_inline:
            self._steps, self._steps_behind = pipelines(self.plan), pipelines(self.plan, is_selected=True)
        self._horizon_us = horizon_us(self.plan) if self.is_stateful else None
        self._has_lists = any(isinstance(each, Nest) for each in walk(self.plan))
        by_value = windowed_by_value(self.plan)
        self._late_values = LateValues(by_value, pipelines(by_value.input)) if by_value is not None else None
        self._closes_windows = self._has_lists or any(isinstance(each, WindowAggregate) for each in walk(self.plan))
        self.clocks = {each.alias: _clock(each, self._horizon_us, deploy.resume, now) for each in subgraph.inputs}
        self.rows_in = dict.fromkeys(self.clocks, 0)
        self.late = dict.fromkeys(self.clocks, 0)
        self.missed = dict.fromkeys(self.clocks, 0)
        self.unfit = dict.fromkeys(self.clocks, 0)
        self.rows_out = 0
        self.state_rows: int | None = None if self.is_stateful and not self.is_inline else 0
        self.watermark_us: int | None = None
        self.floor_us: int | None = None
        self.was_idle = self.had_finished = False
        self.reached = Progress(deploy.resume.covers, deploy.resume.lows)
        self.has_replayed = not self.is_stateful  # The state is that of the earlier attempt, or later.
        self._covered = Vector.of(deploy.resume.covers)  # Rows below are old: an earlier attempt has covered them.
        self._lows = Vector.of(deploy.resume.lows)
        self._fed = Vector.of(deploy.resume.lows)
        self._waiting: deque[_Waiting] = deque()
        self._next_number = 1
        self._in_parts: dict[str, bool] = {}  # Flows in the middle of a batch, or whose maker still replays.
        self._ranks: dict[str, int] = {}  # Rows seen of each source, for windows of rows.
        self.to_acknowledge: dict[str, int | dict[object, Position]] = {}  # By alias: inputs whose results are out.

    def start(self) -> list[Effect]:
        if self.is_inline:
            return []
        return [StartRun(self.run_id, self.plan, self.deploy.resume.watermark_us)]

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # Rows in.

    def reads(self, alias: str) -> Reads:
        """What a stream's readers are listed with: a column that is read cannot be dropped."""
        query = self.deploy.query.rpartition(".")[0] or self.deploy.query
        columns = columns_read(self.deploy.subgraph.plan)[alias]
        return Reads(columns=columns, version=self.sources[alias].schema.version, reader=f'query "{query}"')

    def start_positions(self, alias: str) -> tuple[Position, ...]:
        """Where to begin reading a stream: at the oldest row that the state needs, or after all that is covered."""
        return tuple(Position(each.origin, each.next) for each in self._lows.reaches() if each.alias == alias)

    def sees(self, alias: str) -> Source:
        """A stream as its rows come in: under an alias that all its readers share, and without a window."""
        source = self.sources[alias]
        return Source(source.stream, EVERYBODY, self._schemas[alias], None, source.event_time)

    def selects(self, alias: str) -> tuple[Expression, ...] | None:
        """What it does first with the rows of a stream; None: it wants to see all that come."""
        if not self.is_inline or self._tells_old or self._is_ranked:
            return None
        return selected(self.plan, alias)

    def needed(self, alias: str) -> tuple[Expression, ...]:
        """A row of a stream that does not meet these is of no use. Windows of rows count all rows."""
        return () if self._is_ranked else selected(self.plan, alias)

    def columns_of(self, alias: str) -> tuple[str, ...] | None:
        """The columns of a stream that it reads; None: it hands all to its engine, or counts rows as they are."""
        if not self.is_inline or self._is_ranked:
            return None
        read = columns_read(self.deploy.subgraph.plan)[alias]
        return tuple(each.name for each in self._schemas[alias].fields if each.name in read)

    def _views(self) -> dict[str, View] | None:
        """What it sees and selects of each stream; None: its rows are not those of any other run."""
        found: dict[str, View] = {}
        for each in self.deploy.subgraph.inputs:
            parts = self.selects(each.alias)
            if not isinstance(each, StreamInput) or each.sharing == "off" or parts is None:
                return None
            found[each.alias] = View(self.sees(each.alias), parts)
        return found

    def take_batch(self, alias: str, batch: Batch, now: Millis) -> tuple[list[Effect], list[RunOutput]]:
        """Rows of a stream that were read for this run alone."""
        effects: list[Effect] = []
        results: list[RunOutput] = []
        for part in parts_of(self._schemas[alias], self.sources[alias].event_time, batch):
            more_effects, more_results = self.take_part(alias, part, now)
            effects += more_effects
            results += more_results
        return effects, results

    def take_part(self, alias: str, part: Part, now: Millis) -> tuple[list[Effect], list[RunOutput]]:
        """Rows of a stream: first the old ones, if there are any, then the new ones."""
        source, rows = self.sources[alias], part.rows
        old = min(max(self._covered.next.get((alias, part.origin), 0), part.first), part.next)
        if self._tells_old:
            rows = [(*row[:-1], place >= old, row[-1]) for place, row in zip(part.places, rows, strict=True)]
        if source.window is not None and source.window.kind == "rows":
            rows = [(*row, rank) for rank, row in enumerate(rows, self._ranks.get(alias, 0))]
            self._ranks[alias] = self._ranks.get(alias, 0) + len(rows)
        self.rows_in[alias] += part.left_out
        self.unfit[alias] += len(part.unfit)
        effects: list[Effect] = []
        results: list[RunOutput] = []
        for first, upto in pairwise(dict.fromkeys((part.first, old, part.next))):
            some = rows[bisect_left(part.places, first) : bisect_left(part.places, upto)]
            latest_us = part.latest_us if upto == part.next else None
            if part.is_whole or (some and latest_us is None):
                latest_us = latest_of(source.schema, some)
            self.clocks[alias].note(part.origin, upto, latest_us, part.published_at, now)
            more_effects, more_results = self._feed_stream(alias, some, first >= old, Position(part.origin, upto), now)
            effects += more_effects
            results += more_results
        return effects, results

    def take_some(self, alias: str, some: Some, now: Millis) -> tuple[list[Effect], list[RunOutput]]:
        """Those rows of a part that it selects; they were selected for all readers of the stream together."""
        part = some.part
        covered = self._covered.next.get((alias, part.origin), 0)
        if part.first < covered < part.next:
            return self.take_part(alias, part, now)
        self.clocks[alias].note(part.origin, part.next, some.latest_us, part.published_at, now)
        self.rows_in[alias] += part.next - some.first - len(some.rows) - some.unfit
        self.unfit[alias] += some.unfit
        made = self._steps_behind[alias](some.rows) if self.windows is None else None
        upto, covers = Position(part.origin, part.next), (Reach(alias, part.origin, part.next),)
        progress, is_new = Progress(covers, covers), part.first >= covered
        return self._feed(alias, some.rows, is_new, progress, (upto,), now, made=made, is_common=True)

    def pass_over(self, alias: str, passed: Sequence[Passed], now: Millis) -> tuple[list[Effect], list[RunOutput]]:
        """Its stream has come further, without a row that it selects."""
        for each in passed:
            self.clocks[alias].note(each.origin, each.next, each.latest_us, each.stamp, now)
            self.rows_in[alias] += each.next - each.first - each.unfit
            self.unfit[alias] += each.unfit
        covers = tuple(Reach(alias, each.origin, each.next) for each in passed)
        positions = tuple(Position(each.origin, each.next) for each in passed)
        return self._feed(alias, (), True, Progress(covers, covers), positions, now)

    def take_gap(self, alias: str, missed: Missed, now: Millis) -> tuple[list[Effect], list[RunOutput]]:
        """Rows that expired before they were read: go on behind them."""
        covered = self._covered.next.get((alias, missed.origin), 0)
        self.missed[alias] += max(0, missed.next - max(missed.first, covered))
        self.clocks[alias].note(missed.origin, missed.next, None, 0, now)
        return self._feed_stream(alias, (), True, Position(missed.origin, missed.next), now)

    def _feed_stream(
        self, alias: str, rows: Sequence[Row], is_new: bool, upto: Position, now: Millis
    ) -> tuple[list[Effect], list[RunOutput]]:
        covers = (Reach(alias, upto.origin, upto.next),)
        return self._feed(alias, rows, is_new, Progress(covers, covers), (upto,), now)

    def take_flow(self, alias: str, flow: Flow, now: Millis) -> tuple[list[Effect], list[RunOutput]]:
        """Rows of another subgraph, and how far its own inputs have come."""
        rows = decode_rows(self.sources[alias].columns, flow.rows)
        time_at = len(self.sources[alias].schema.fields)
        latest_us = max(((row[time_at] - EPOCH) // MICROSECOND for row in rows), default=None)
        effects: list[Effect] = []
        results: list[RunOutput] = []
        if alias in self._mixed and not self._tells_old:
            old, rows = [row for row in rows if not row[time_at - 1]], [row for row in rows if row[time_at - 1]]
            if old:
                self._in_parts[alias] = True
                effects, results = self._feed(alias, old, False, Progress(), (), now)
        self.clocks[alias].note_flow(alias, flow.progress, latest_us, now)
        self._in_parts[alias] = not flow.is_whole
        more_effects, more_results = self._feed(alias, rows, flow.is_new, flow.progress, flow.sequence + 1, now)
        return effects + more_effects, results + more_results

    def _feed(
        self,
        alias: str,
        rows: Sequence[Row],
        is_new: bool,
        progress: Progress,
        acknowledges: int | tuple[Position, ...],
        now: Millis,
        *,
        made: Sequence[Row] | None = None,  # What becomes of the rows, if that is known.
        is_common: bool = False,  # Others get the same rows; all of them are fit.
    ) -> tuple[list[Effect], list[RunOutput]]:
        fit = rows if is_common else self.sources[alias].schema.held(rows)
        self.unfit[alias] += len(rows) - len(fit)
        in_time = self._in_time(alias, fit, is_new=is_new, is_common=is_common)
        if self._late_values is not None:
            in_time = self._late_values.in_time(alias, in_time)
        self.late[alias] += len(fit) - len(in_time)
        self.rows_in[alias] += len(in_time)
        self._advance(now)
        self.was_idle, self.had_finished = self.is_idle(now), self.has_finished(now)
        self._fed.advance(progress.covers)
        number = self._next_number
        self._next_number += 1
        self._waiting.append(
            _Waiting(
                number, is_new, progress, self.watermark_us, self.floor_us, self._has_all(now), alias, acknowledges
            )
        )
        if self.windows is not None:
            # Rows that are late for this run alone may be in time for another. Its own closed windows take none.
            given = fit if is_common else in_time
            self.windows.feed(number, alias, given, is_new, self.watermark_us, is_common=is_common)
            return [], []
        if self.is_inline:
            # Without state, old rows matter only to the consumer.
            wanted = is_new or self.deploy.subgraph.consumer is not None
            made = self._steps[alias](in_time) if made is None else made
            return [], self.finished(number, made if wanted else ())
        has_results = is_new or self._tells_old
        return [FeedRun(self.run_id, number, alias, tuple(in_time), has_results, self.watermark_us, self.floor_us)], []

    def _has_all(self, now: Millis) -> bool:
        """Whether the replay is done: all rows that the earlier attempt covered are back, or its patience is over."""
        if any(self._in_parts.values()):
            return False
        if not self.is_stateful:
            return True
        missing = any(upto > self._fed.next.get(reach, 0) for reach, upto in self._covered.next.items())
        return not missing or now >= self._patient_until

    def _in_time(self, alias: str, rows: Sequence[Row], *, is_new: bool, is_common: bool) -> Sequence[Row]:
        """The rows that are not too late for every window of time they belong to.

        Of old rows none is dropped by the watermark that an earlier attempt has reached: they were in time then.
        """
        if not self.is_stateful or not rows:
            return rows
        closed_us = self.watermark_us if self._closes_windows else self.clocks[alias].floor_us
        resumed_us = self.deploy.resume.watermark_us
        if self._closes_windows and is_new and resumed_us is not None:
            closed_us = resumed_us if closed_us is None else max(closed_us, resumed_us)
        if closed_us is None:
            return rows
        place, closed = len(self.sources[alias].schema.fields), time_at(closed_us)
        if is_common and self.windows is not None and self.windows.earliest(alias, rows) >= closed:
            return rows
        return [row for row in rows if row[place] >= closed or not self._is_late(alias, row[place], closed_us)]

    def _is_late(self, alias: str, time: datetime, closed_us: int) -> bool:
        """Whether no window that a row of this time belongs to is open any more."""
        time_us = (time - EPOCH) // MICROSECOND
        if self._closes_windows and not self._has_lists:
            last_us = last_result_us(self.plan, alias, time_us)
            return last_us is not None and time_us < last_us <= closed_us
        return self._horizon_us is not None and time_us < closed_us - self._horizon_us

    # Time.

    def _advance(self, now: Millis) -> bool:
        """Move the watermark of the whole run: that of the slowest input that is not silent.

        No window closes during a replay: it would lack rows that it had in the earlier attempt.
        """
        for clock in self.clocks.values():
            clock.advance(now)
        if self._closes_windows and not self._has_all(now):
            return False
        floors = [clock.floor_us for clock in self.clocks.values()]
        self.floor_us = None if None in floors else min(floor for floor in floors if floor is not None)
        reached = self._closing_us() if self.has_finished(now) else self._slowest_us(now)
        if reached is None or (self.watermark_us is not None and reached <= self.watermark_us):
            return False
        self.watermark_us = reached
        return True

    def _slowest_us(self, now: Millis) -> int | None:
        """The watermark of the slowest input that is not silent; of all that have one, if all are silent."""
        lively = [clock.watermark_us for clock in self.clocks.values() if not clock.is_idle(now)]
        if None in lively:
            return None
        unfinished = (clock for clock in self.clocks.values() if not clock.has_finished(now))
        marks = lively or [clock.watermark_us for clock in unfinished]
        return min((mark for mark in marks if mark is not None), default=None)

    def _closing_us(self) -> int | None:
        """Nothing more is to come: the time at which the last windows close."""
        found: list[int] = []
        for alias, clock in self.clocks.items():
            if clock.latest_us is not None:
                last_us = last_result_us(self.plan, alias, clock.latest_us)
                found.append(clock.latest_us if last_us is None else max(last_us, clock.latest_us))
        return max(found, default=None)

    def is_idle(self, now: Millis) -> bool:
        return all(clock.is_idle(now) for clock in self.clocks.values())

    def has_finished(self, now: Millis) -> bool:
        return all(clock.has_finished(now) for clock in self.clocks.values())

    def meet(self, alias: str, publishers: Publishers, now: Millis) -> None:
        """Some peers publish to a stream. The next tick goes by that."""
        self.clocks[alias].meet(publishers, now)

    def take_silence(self, alias: str, silence: Silence, now: Millis) -> None:
        """A publisher has nothing more for now. The next tick goes by that."""
        self.clocks[alias].note_silence(silence, now)

    def tick(self, now: Millis) -> tuple[list[Effect], list[RunOutput]]:
        """Time goes on without rows: windows close, and the consumer hears of it."""
        before = self.was_idle, self.had_finished
        self.was_idle, self.had_finished = self.is_idle(now), self.has_finished(now)
        if not self._advance(now) and before == (self.was_idle, self.had_finished):
            return [], []
        if self.is_stateful:
            alias = self.deploy.subgraph.inputs[0].alias
            return self._feed(alias, (), True, Progress(), (), now)
        if self.deploy.subgraph.consumer is None or self._waiting:
            return [], []
        return [], [
            RunOutput((), True, self._progress(Progress(), (), self.watermark_us, self.floor_us), self.to_report())
        ]

    def _progress(
        self, made: Progress, lows: tuple[Reach, ...], watermark_us: int | None, floor_us: int | None
    ) -> Progress:
        return Progress(made.covers, lows, watermark_us, floor_us, self.was_idle, self.had_finished)

    # Results out.

    def finished(self, number: int, rows: Sequence[Row]) -> list[RunOutput]:
        """The engine has given all results of the inputs up to a number."""
        is_new = True
        watermark_us: int | None = None
        floor_us: int | None = None
        progress = NOTHING
        while self._waiting and self._waiting[0].number <= number:
            done = self._waiting.popleft()
            # An engine gives no result of old rows alone.
            is_new = done.is_new or self.is_stateful
            watermark_us, floor_us = done.watermark_us, done.floor_us
            self.has_replayed = done.has_replayed
            progress = merged(progress, done.progress)
            self._pass_on(done)
        lows = self._stateful_lows(floor_us) if self.is_stateful else progress.lows
        progress = self._progress(progress, lows, watermark_us, floor_us)
        self.reached = merged(self.reached, progress)
        return [self._output(rows, is_new, progress)]

    @property
    def has_work(self) -> bool:
        """Whether the daemon has inputs to work on."""
        return self.windows is not None and self.windows.aggregation.has_work

    def worked(self) -> list[RunOutput]:
        """Results of the daemon's work. What the first results of an input cover is known with the last."""
        outputs: list[RunOutput] = []
        for made in self.windows.taken() if self.windows is not None else ():
            if made.number is not None:
                outputs += self.finished(made.number, made.rows)
            else:
                self.has_replayed = False
                outputs.append(self._output(made.rows, True, Progress()))
        return outputs

    def _output(self, rows: Sequence[Row], is_new: bool, progress: Progress) -> RunOutput:
        if self._shape is not None:
            rows = self._shape(rows)
        self.rows_out += len(rows)
        return RunOutput(rows, is_new, progress, self.to_report())

    def to_report(self) -> Progress | None:
        """What the results so far cover; None during a replay."""
        return self.reached if self.has_replayed else None

    def _pass_on(self, done: _Waiting) -> None:
        if isinstance(done.acknowledges, int):
            self.to_acknowledge[done.alias] = done.acknowledges
        elif done.acknowledges:  # A tick acknowledges nothing.
            positions = self.to_acknowledge.setdefault(done.alias, {})
            assert isinstance(positions, dict)
            positions.update({position.origin: position for position in done.acknowledges})

    def _stateful_lows(self, floor_us: int | None) -> tuple[Reach, ...]:
        """Lows by the floor of the last input whose results are out: inputs still in the engine may need older rows."""
        for alias, clock in self.clocks.items():
            self._lows.advance(clock.lows(alias, floor_us))
        return self._lows.reaches()

    def status(self, life: Millis, now: Millis, others: Mapping[str, int] = MappingProxyType({})) -> SubgraphStatus:
        return SubgraphStatus(
            query=self.deploy.query,
            attempt=self.deploy.attempt,
            number=self.deploy.subgraph.number,
            life=life,
            rows_in=as_count(sum(self.rows_in.values())),
            rows_out=self.rows_out,
            waiting=len(self._waiting),
            inputs=tuple(
                InputStatus(
                    alias,
                    as_count(self.rows_in[alias]),
                    self.late[alias],
                    clock.watermark_us,
                    clock.is_idle(now),
                    as_count(self.missed[alias]),
                    clock.hold(now),
                    clock.left_out(now),
                    clock.has_finished(now),
                    as_count(self.unfit[alias]),
                    others.get(alias),
                )
                for alias, clock in self.clocks.items()
            ),
            progress=self.reached,
            state_rows=self.windows.state_rows if self.windows is not None else self.state_rows,
            windows_with=self.windows.shared_with if self.windows is not None else None,
        )


def _clock(each: Input, horizon_us: int | None, resume: Progress, now: Millis) -> InputClock:
    """The clock of an input, as an attempt finds it."""
    if isinstance(each, FlowInput):
        return InputClock(0, follows_clock=False, horizon_us=horizon_us, reported=Progress())
    clock = InputClock(
        each.lateness_ms * 1000,
        follows_clock=each.event_time is None,
        horizon_us=horizon_us,
        since=each.since,
        patience_ms=each.patience_ms,
    )
    clock.await_again((reach.origin for reach in resume.covers if reach.alias == each.alias), now)
    return clock
