"""The engine inside the daemon: selections, projections and unions at once, and windows of time from slices.

Closing a window of many groups takes long, so the work on an input is cut into steps. One event does a few of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from queries import restructure
from queries.compile import predicate_on_batch, project_on_batch
from queries.plan import (
    Operator,
    Project,
    Restructure,
    Select,
    Source,
    Union,
    WindowAggregate,
    sources,
    walk,
)
from queries.reads import is_chain
from queries.schema import Row
from queries.slices import Slices

STEPS: Final = 5  # Of one event; each takes a few milliseconds at most.
ROWS_OF_STEP: Final = 500
RESULTS_MAX: Final = 4000  # More results of one input are handed on in parts.

Step = Callable[[Sequence[Row]], Sequence[Row]]


def pipelines(plan: Operator, base: Operator | None = None, *, is_selected: bool = False) -> dict[str, Step]:
    """For each source of a plan without state, a function from its rows to results.

    With `base`, an operator of the plan: the function begins with the rows of this operator. `is_selected`: the rows
    meet the first selections already.
    """

    def below_it(below: Operator) -> dict[str, Step]:
        return pipelines(below, base, is_selected=is_selected)

    if plan is base:
        return {sources(plan)[0].alias: lambda rows: rows}
    match plan:
        case Source(alias=alias):
            return {alias: lambda rows: rows}
        case Select(input=below) if is_selected and is_chain(plan):
            return below_it(below)
        case Select(input=below, predicate=predicate):
            return _then(below_it(below), predicate_on_batch(predicate, below.columns))
        case Project(input=below, outputs=outputs):
            expressions = tuple(each.expression for each in outputs)
            return _then(below_it(below), project_on_batch(expressions, below.columns))
        case Union(branches=branches):
            return {alias: step for branch in branches for alias, step in below_it(branch).items()}
        case Restructure(input=below):
            return _then(below_it(below), restructure.on_batch(plan))
    raise AssertionError(f"{plan} has state")


def _then(before: dict[str, Step], step: Step) -> dict[str, Step]:
    def chain(first: Step) -> Step:
        return lambda rows: step(first(rows))

    return {alias: chain(first) for alias, first in before.items()}


class Made(NamedTuple):
    """Results of one input. More of them may follow until the input is done: then its number is given."""

    number: int | None
    rows: list[Row]


class _Input(NamedTuple):
    number: int
    alias: str
    rows: Sequence[Row]
    is_new: bool
    watermark_us: int | None


@dataclass(slots=True)
class _Windows:
    """The windows of one branch of a plan: what comes before them, the slices, and what comes after."""

    before: Step
    slices: Slices
    reader: int
    after: Step

    @classmethod
    def of(cls, aggregate: WindowAggregate, top: Operator, closed_until_us: int | None) -> _Windows:
        (before,) = pipelines(aggregate.input).values()
        (after,) = pipelines(top, aggregate).values()
        slices = Slices([each.expression for each in aggregate.keys], aggregate.input.columns)
        return cls(before, slices, slices.join(aggregate.window, aggregate.aggregates, closed_until_us), after)


@dataclass(slots=True)
class WindowRun:
    """One plan with windows of time, run in the daemon.

    In:        inputs: rows of one source, and the watermark once they are in
    Out:       the results of each input, in order, as far as one event may go
    Keeps:     slices, and the inputs that wait
    Invariant: an input is begun once the one before it is worked on to its end
    """

    _plain: dict[str, Step]  # What has no windows, by alias.
    _windows: dict[str, _Windows]  # By alias.
    _inputs: deque[_Input] = field(default_factory=deque)
    _work: Iterator[Sequence[Row]] | None = None  # On the first input.
    _made: list[Row] = field(default_factory=list)  # Of the first input.

    @classmethod
    def of(cls, plan: Operator, closed_until_us: int | None) -> WindowRun:
        """Leave out windows that end by `closed_until_us`: an earlier attempt has handed on their results."""
        plain: dict[str, Step] = {}
        windows: dict[str, _Windows] = {}
        for branch in _branches(plan):
            aggregate = next((each for each in walk(branch) if isinstance(each, WindowAggregate)), None)
            if aggregate is None:
                plain |= pipelines(branch)
            else:
                windows[sources(branch)[0].alias] = _Windows.of(aggregate, branch, closed_until_us)
        return cls(plain, windows)

    @property
    def has_work(self) -> bool:
        return bool(self._inputs)

    @property
    def state_rows(self) -> int:
        """How many groups of slices it keeps, and values of DISTINCT."""
        return sum(each.slices.rows for each in self._windows.values())

    def feed(self, number: int, alias: str, rows: Sequence[Row], is_new: bool, watermark_us: int | None) -> None:
        """Rows that are not new are for state only."""
        self._inputs.append(_Input(number, alias, rows, is_new, watermark_us))

    def work(self) -> list[Made]:
        """Work on the inputs as much as one event may."""
        found: list[Made] = []
        for _ in range(STEPS):
            if not self._inputs:
                break
            if self._work is None:
                self._work = self._on(self._inputs[0])
            step = next(self._work, None)
            if step is None:
                found.append(Made(self._inputs.popleft().number, self._made))
                self._work, self._made = None, []
                continue
            self._made += step
            if len(self._made) >= RESULTS_MAX:
                found.append(Made(None, self._made))
                self._made = []
        return found

    def _on(self, given: _Input) -> Iterator[Sequence[Row]]:
        """Work on one input, step by step."""
        windows = self._windows.get(given.alias)
        for place in range(0, len(given.rows), ROWS_OF_STEP):
            rows = given.rows[place : place + ROWS_OF_STEP]
            if windows is not None:
                windows.slices.add(windows.before(rows))
                yield ()
            elif given.is_new:
                yield self._plain[given.alias](rows)
        if given.watermark_us is not None:
            for each in self._windows.values():
                for results in each.slices.close(each.reader, given.watermark_us):
                    yield each.after(results)


def _branches(plan: Operator) -> list[Operator]:
    return [each for branch in plan.branches for each in _branches(branch)] if isinstance(plan, Union) else [plan]
