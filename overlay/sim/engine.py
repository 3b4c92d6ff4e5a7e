"""The engine of simulated peers: the reference evaluates every plan from the beginning, at each input.

Slow, and right by definition. A simulation shows that rows reach the engine and results leave it as they should.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.execution.engine import FeedRun, RunId, StartRun
from queries.expressions import EPOCH, MICROSECOND
from queries.plan import Join, Nest, Operator, Project, Select, Source, Union, WindowAggregate, sources, walk
from queries.reference import Result, Tuple, evaluate
from queries.schema import Row

QUERY: Final = "simulated"


@dataclass(slots=True)
class _Run:
    plan: Operator
    is_due_at_once: bool
    has_windows: bool  # Windows or lists, whose results are told when the watermark has passed.
    closed_until_us: int | None
    tuples: dict[str, list[Tuple]] = field(default_factory=dict)  # By alias, which stands for the stream's name.
    is_new: dict[str, bool] = field(default_factory=dict)  # By tuple id.
    told: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class ReferenceEngine:
    """Runs of one peer."""

    _runs: dict[RunId, _Run] = field(default_factory=dict)

    def start(self, effect: StartRun) -> None:
        plan = _on_aliases(effect.plan)
        slides = any(each.window is not None and each.window.slide is not None for each in sources(plan))
        has_windows = any(isinstance(each, Nest | WindowAggregate) for each in walk(plan))
        run = _Run(plan, not slides and not has_windows, has_windows, effect.closed_until_us)
        run.tuples = {each.alias: [] for each in sources(plan)}
        self._runs[effect.run] = run

    def feed(self, effect: FeedRun) -> tuple[Row, ...]:
        """The results that became due with these rows."""
        run = self._runs[effect.run]
        source = next(each for each in sources(run.plan) if each.alias == effect.alias)
        width = len(source.schema.fields)
        for place, row in enumerate(effect.rows):
            name = f"{effect.number}/{place}"
            run.tuples[effect.alias].append(Tuple(row[width], row[:width], name))
            run.is_new[name] = effect.is_new
        due = []
        for result in evaluate(run.plan, run.tuples):
            name = result.notification_id(QUERY)
            if name not in run.told and self._is_due(run, result, effect.watermark_us):
                run.told[name] = None
                if self._is_new(run, result):
                    due.append(result.row)
        return tuple(due)

    def stop(self, run: RunId) -> None:
        self._runs.pop(run, None)

    def _is_due(self, run: _Run, result: Result, watermark_us: int | None) -> bool:
        return run.is_due_at_once or (watermark_us is not None and _us(result) <= watermark_us)

    def _is_new(self, run: _Run, result: Result) -> bool:
        was_told = run.closed_until_us is not None and _us(result) <= run.closed_until_us
        if result.window is not None:
            return not was_told
        is_new = any(run.is_new[name] for _, name in result.sources)
        return is_new or (run.has_windows and not was_told)


def _us(result: Result) -> int:
    return (result.time - EPOCH) // MICROSECOND


def _on_aliases(plan: Operator) -> Operator:
    """The plan over streams named after its aliases, whose time is in their rows."""
    match plan:
        case Source():
            return msgspec.structs.replace(plan, stream=plan.alias, event_time=None, lateness_ms=0)
        case Select() | Project() | WindowAggregate():
            return msgspec.structs.replace(plan, input=_on_aliases(plan.input))
        case Nest():
            return msgspec.structs.replace(plan, input=_on_aliases(plan.input), nested=_on_aliases(plan.nested))
        case Join():
            return msgspec.structs.replace(plan, left=_on_aliases(plan.left), right=_on_aliases(plan.right))
        case Union():
            return msgspec.structs.replace(plan, branches=tuple(map(_on_aliases, plan.branches)))
    raise AssertionError(f"an engine does not run {plan}")
