"""Windows of time in the daemon, for one run or for several that get the same rows (decision 55).

Runs whose aggregates have the same input (stream, selection, group keys) read the same slices. The rows that a shared
stream gives to several of them are added once. What one run gets alone, before it shares or because it is too slow, is
added for it alone: `queries/slices.py` keeps what was added for whom. So each run has the rows that it was given and no
others, and its results are those that it would have by itself.

What closes a window of many groups takes long, so an input is worked on in steps, a few in one event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from protocols.delivery.needs import EVERYBODY
from protocols.execution.engine import RunId
from protocols.execution.inline import Step, pipelines
from protocols.ids import StreamName
from protocols.sieve import for_everybody, name_of
from queries.expressions import Expression
from queries.plan import Aggregate, Operator, Source, Union, WindowAggregate, sources, walk
from queries.schema import Row
from queries.slices import Slices

STEPS: Final = 5  # Of one event; each takes a few milliseconds at most.
ROWS_OF_STEP: Final = 500
RUNS_OF_STEP: Final = 25  # Whose windows are looked at, if none closes.
RESULTS_MAX: Final = 4000  # More results of one input are handed on in parts.
OVER: Final = object()


class View(NamedTuple):
    """The rows that a run gets of a source, in words that mean the same for all runs of a host."""

    source: Source
    parts: tuple[Expression, ...]  # What it selects.


Key = tuple[tuple[Source, str, tuple[Expression, ...] | None], ...]
"""For each branch of a plan: the rows that it gets, and its group keys if it has windows."""


class Made(NamedTuple):
    """Results of an input. Without its number there are more to come, or it is not worked on to its end."""

    number: int | None
    rows: list[Row]


class _Due(NamedTuple):
    """One input of one run: what is to be done once its rows are in the slices."""

    number: int
    is_new: bool
    watermark_us: int | None


@dataclass(slots=True, eq=False)
class _Entry:
    """Rows of one branch, and the runs that got them: for each, this input and those without rows that followed."""

    place: int  # Of the branch.
    rows: Sequence[Row]
    order: int
    is_selected: bool
    takers: dict[WindowRun, list[_Due]]
    is_begun: bool = False


@dataclass(slots=True, eq=False)
class _Branch:
    """One source of a plan, and the slices of its rows."""

    before: Step  # What windows see of the rows of the source,
    behind: Step  # and of those that the selection has kept.
    slices: Slices | None  # None: it has no windows.
    newest: _Entry | None = None  # The last entry that several runs may get.
    _timed: Sequence[Row] = ()
    _earliest: datetime | None = None

    def earliest(self, rows: Sequence[Row]) -> datetime:
        """The first time among some rows; asked by one run after the other."""
        if self._timed is not rows or self._earliest is None:
            self._timed, self._earliest = rows, min(row[-1] for row in rows)
        return self._earliest

    def forget(self, entry: _Entry) -> None:
        """Nobody else will get these rows."""
        if self.newest is entry:
            self.newest, self._timed = None, ()


@dataclass(slots=True, eq=False)
class WindowRun:
    """One run in an aggregation.

    In:        inputs: rows of one source, and the watermark once they are in
    Out:       the results of each input, in order, as far as one event may go
    Keeps:     where it reads the slices; results until they are taken
    Invariant: an input is begun once the one before it is worked on to its end
    """

    name: RunId
    aggregation: Aggregation
    places: dict[str, int]  # Of its aliases: which branch of the aggregation each is.
    after: list[Step]  # For each branch: from the results of windows, or from rows, to the results of the run.
    readers: dict[int, int] = field(default_factory=dict)  # For each branch with windows: its number at the slices.
    last: _Entry | None = None  # Its last input that is not begun.
    others: int = 0  # How many runs have got the same rows when it last got some.
    _made: list[Made] = field(default_factory=list)
    _rows: list[Row] = field(default_factory=list)  # Results of the input that is worked on.

    @property
    def state_rows(self) -> int:
        """How many groups of slices it reads, and values of DISTINCT; others may read them, too."""
        slices = [(self.aggregation.branches[place].slices, number) for place, number in self.readers.items()]
        return sum(each.rows_of(number) for each, number in slices if each is not None)

    @property
    def shared_with(self) -> int:
        return min(self.others, len(self.aggregation.runs) - 1)

    def feed(
        self,
        number: int,
        alias: str,
        rows: Sequence[Row],
        is_new: bool,
        watermark_us: int | None,
        *,
        is_common: bool = False,
    ) -> None:
        """Rows that are not new are for state only. Common ones are selected already; other runs may get the same."""
        self.aggregation.take(self, self.places[alias], rows, _Due(number, is_new, watermark_us), is_common)

    def earliest(self, alias: str, rows: Sequence[Row]) -> datetime:
        return self.aggregation.branches[self.places[alias]].earliest(rows)

    def gather(self, rows: Sequence[Row]) -> None:
        """Some results of the input that is worked on."""
        self._rows += rows
        if len(self._rows) >= RESULTS_MAX:
            self._made.append(Made(None, self._rows))
            self._rows = []

    def finish(self, number: int) -> None:
        self._made.append(Made(number, self._rows))
        self._rows = []

    def taken(self) -> list[Made]:
        made, self._made = self._made, []
        return made


@dataclass(slots=True, eq=False)
class Aggregation:
    """The slices of some rows, and the runs that read them.

    In:        inputs of its runs, each run's in order
    Out:       the runs for which there are results
    Keeps:     slices, and the inputs that wait
    Invariant: rows are in the slices for exactly those runs that got them, and a run's windows are closed after the
               inputs that its watermark follows from, before later ones
    """

    key: Key | None  # None: one run has it for itself.
    branches: list[_Branch]
    runs: dict[WindowRun, None] = field(default_factory=dict)
    rows_added: int = 0
    rows_saved: int = 0  # Which its runs would have added besides, each for itself.
    _entries: deque[_Entry] = field(default_factory=deque)
    _work: Iterator[None] | None = None  # On the first entry.
    _orders: int = 0
    _told: dict[WindowRun, None] = field(default_factory=dict)  # Runs for which there are results.

    @property
    def has_work(self) -> bool:
        return bool(self._entries)

    @property
    def state_rows(self) -> int:
        return sum(each.slices.rows for each in self.branches if each.slices is not None)

    def validate(self) -> None:
        for entry in self._entries:
            for run in entry.takers:
                assert run in self.runs
        for run in self.runs:
            assert run.last is None or (run in run.last.takers and not run.last.is_begun)

    def take(self, run: WindowRun, place: int, rows: Sequence[Row], due: _Due, is_common: bool) -> None:
        """One input of a run."""
        if not rows:
            self._take_time(run, due)
            return
        branch = self.branches[place]
        entry = branch.newest if is_common else None
        if entry is not None and entry.rows is rows and not entry.is_begun and _may_get(run, entry):
            entry.takers[run] = [due]
        else:
            self._orders += 1
            entry = _Entry(place, rows, self._orders, is_common, {run: [due]})
            self._entries.append(entry)
            if is_common:
                branch.newest = entry
        run.last = entry

    def _take_time(self, run: WindowRun, due: _Due) -> None:
        """An input without rows: behind the last input of the run, before all that it gets later."""
        if run.last is not None:
            run.last.takers[run].append(due)
            return
        run.last = _Entry(0, (), 0, False, {run: [due]})
        self._entries.insert(1 if self._work is not None else 0, run.last)

    def leave(self, run: WindowRun) -> None:
        """A run is over."""
        del self.runs[run]
        for entry in self._entries:
            entry.takers.pop(run, None)
        if self._work is not None and not self._entries[0].takers:
            self._work = None
        self._entries = deque(entry for entry in self._entries if entry.takers)
        for place, number in run.readers.items():
            slices = self.branches[place].slices
            assert slices is not None
            slices.leave(number)

    def work(self, awaited: Sequence[Row] | None = None) -> list[WindowRun]:
        """Work as much as one event may; returns the runs for which there are results.

        Of an entry with the awaited rows it is not known yet who else gets them.
        """
        for _ in range(STEPS):
            if self._work is None:
                if not self._entries or (awaited is not None and self._entries[0].rows is awaited):
                    break
                self._work = self._on(self._entries[0])
            if next(self._work, OVER) is OVER:
                self._entries.popleft()
                self._work = None
        return self.ready()

    def ready(self) -> list[WindowRun]:
        """The runs for which there are results."""
        told, self._told = self._told, {}
        return [run for run in told if run in self.runs]

    def broken(self) -> list[WindowRun]:
        """Nobody can compute with the rows that are worked on: the runs that got them, which have to end."""
        self._work = None
        return list(self._entries[0].takers)

    def _on(self, entry: _Entry) -> Iterator[None]:
        """Work on one entry, step by step."""
        branch = self.branches[entry.place]
        self._begin(entry)
        branch.forget(entry)
        for place in range(0, len(entry.rows), ROWS_OF_STEP):
            rows = entry.rows[place : place + ROWS_OF_STEP]
            if branch.slices is not None:
                self._add(branch.slices, (branch.behind if entry.is_selected else branch.before)(rows), entry)
            else:
                for run in [each for each, dues in entry.takers.items() if dues[0].is_new]:
                    self._gather(run, run.after[entry.place](rows))
            yield
        for looked_at, (run, dues) in enumerate(list(entry.takers.items()), 1):
            for due in dues:
                yield from self._close(run, due)
                run.finish(due.number)
            self._told[run] = None
            if looked_at % RUNS_OF_STEP == 0:
                yield

    def _begin(self, entry: _Entry) -> None:
        entry.is_begun = True
        for run in entry.takers:
            if run.last is entry:
                run.last = None
            if entry.rows:
                run.others = len(entry.takers) - 1

    def _add(self, slices: Slices, rows: Sequence[Row], entry: _Entry) -> None:
        readers = tuple(sorted(run.readers[entry.place] for run in entry.takers))
        slices.add(rows, readers)
        self.rows_added += len(rows)
        self.rows_saved += len(rows) * (len(readers) - 1)

    def _close(self, run: WindowRun, due: _Due) -> Iterator[None]:
        """Close the windows of one run. The others may be further, or not so far."""
        for place, number in run.readers.items():
            slices = self.branches[place].slices
            if run not in self.runs or due.watermark_us is None or slices is None:
                return
            for results in slices.close(number, due.watermark_us):
                if run not in self.runs:
                    return
                self._gather(run, run.after[place](results))
                yield

    def _gather(self, run: WindowRun, rows: Sequence[Row]) -> None:
        run.gather(rows)
        self._told[run] = None


def _may_get(run: WindowRun, entry: _Entry) -> bool:
    """Whether an entry comes after all inputs of a run."""
    return run.last is None or run.last.order < entry.order


@dataclass(slots=True)
class Aggregations:
    """The aggregations of a host."""

    _all: dict[Aggregation, None] = field(default_factory=dict)
    _shared: dict[Key, Aggregation] = field(default_factory=dict)
    _saved: int = 0  # By aggregations that are over.

    def enter(
        self, name: RunId, plan: Operator, closed_until_us: int | None, views: Mapping[str, View] | None = None
    ) -> WindowRun:
        """A run begins. Windows that end by a time were told by an earlier attempt.

        `views`: what it gets of each source, if others may get the same.
        """
        branches = _branches(plan)
        key = _key_of(branches, views) if views is not None else None
        aggregation = self._shared.get(key) if key is not None else None
        if aggregation is None:
            aggregation = Aggregation(key, [_branch(each) for each in branches])
            self._all[aggregation] = None
            if key is not None:
                self._shared[key] = aggregation
        run = WindowRun(name, aggregation, {}, [])
        for place, (branch, made) in enumerate(zip(branches, aggregation.branches, strict=True)):
            alias, aggregate = sources(branch)[0].alias, _aggregate_of(branch)
            run.places[alias] = place
            run.after.append(pipelines(branch, aggregate)[alias])
            if aggregate is not None and made.slices is not None:
                wanted = [_common(each) for each in aggregate.aggregates]
                run.readers[place] = made.slices.join(aggregate.window, wanted, closed_until_us)
        aggregation.runs[run] = None
        return run

    def leave(self, run: WindowRun) -> bool:
        """A run is over; whether its aggregation still has work."""
        aggregation = run.aggregation
        aggregation.leave(run)
        if not aggregation.runs:
            del self._all[aggregation]
            self._saved += aggregation.rows_saved
            if aggregation.key is not None:
                del self._shared[aggregation.key]
        return aggregation.has_work

    @property
    def state_rows(self) -> int:
        """How many groups of slices are kept here, and values of DISTINCT. What several runs read counts once."""
        return sum(each.state_rows for each in self._all)

    def largest(self) -> tuple[RunId, str]:
        """The run that reads most, of those whose slices are most; and how much that is, in words."""
        most = max(self._all, key=lambda each: each.state_rows)
        run = max(most.runs, key=lambda each: each.state_rows)
        others = f", shared by {run.shared_with + 1} queries" if run.shared_with else ""
        return run.name, f"its windows keep {run.state_rows} partial aggregates{others}"

    def sharing(self, stream: StreamName) -> tuple[int, int]:
        """How many runs put windows together from slices of a stream, and how many sets of slices these are."""
        found = [each for key, each in self._shared.items() if any(source.stream == stream for source, _, _ in key)]
        return sum(len(each.runs) for each in found), len(found)

    def counters(self) -> dict[str, int]:
        """For /metrics."""
        return {
            "shared_slices": sum(len(each.runs) > 1 for each in self._all),
            "shared_slices_rows_saved_total": self._saved + sum(each.rows_saved for each in self._all),
        }

    def validate(self) -> None:
        for aggregation in self._all:
            assert aggregation.runs
            aggregation.validate()


def _branches(plan: Operator) -> list[Operator]:
    return [each for branch in plan.branches for each in _branches(branch)] if isinstance(plan, Union) else [plan]


def _aggregate_of(branch: Operator) -> WindowAggregate | None:
    return next((each for each in walk(branch) if isinstance(each, WindowAggregate)), None)


def _branch(branch: Operator) -> _Branch:
    aggregate = _aggregate_of(branch)
    if aggregate is None:
        return _Branch(lambda rows: rows, lambda rows: rows, None)
    (before,) = pipelines(aggregate.input).values()
    (behind,) = pipelines(aggregate.input, is_selected=True).values()
    columns = [msgspec.structs.replace(each, input=EVERYBODY) for each in aggregate.input.columns]
    return _Branch(before, behind, Slices(_keys_of(aggregate), columns))


def _keys_of(aggregate: WindowAggregate) -> tuple[Expression, ...]:
    return tuple(for_everybody(each.expression) for each in aggregate.keys)


def _common(aggregate: Aggregate) -> Aggregate:
    argument = for_everybody(aggregate.argument) if aggregate.argument is not None else None
    return msgspec.structs.replace(aggregate, argument=argument)


def _key_of(branches: Sequence[Operator], views: Mapping[str, View]) -> Key:
    found: list[tuple[Source, str, tuple[Expression, ...] | None]] = []
    for branch in branches:
        view, aggregate = views[sources(branch)[0].alias], _aggregate_of(branch)
        found.append((view.source, name_of(view.parts), _keys_of(aggregate) if aggregate is not None else None))
    return tuple(found)
