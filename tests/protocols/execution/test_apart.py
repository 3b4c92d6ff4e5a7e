"""Joins of several streams taken apart: who runs what, and how rows of before stay what they were from join to join."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from overlay.sim.engine import ReferenceEngine
from protocols.clock import COUNT_BITS
from protocols.delivery.messages import Batch, Origin
from protocols.effects import Effect
from protocols.execution.apart import inner_joins
from protocols.execution.cut import Cut, cut
from protocols.execution.engine import FeedRun, StartRun
from protocols.execution.messages import Deploy, FlowInput, Progress, Reach
from protocols.execution.run import Results, Run, encode_rows
from protocols.ids import PeerId
from queries.catalogue import Stream
from queries.plan import Join, sources, walk
from queries.query import parse
from queries.reference import Tuple, evaluate
from queries.schema import Row, Schema
from tests.protocols.execution.parts import NORTH, PROXY, SOUTH, WORKER, at, flow

SCHEMA = Schema.parse("number int, is_new int, at timestamp")
NAMES = ("left", "right", "far", "near")
STREAMS = {name: Stream(name, SCHEMA, "at") for name in NAMES}
ORIGINS = {name: Origin(PROXY, name, 1) for name in NAMES}
THREE = (
    "SELECT l.number, r.is_new, f.at AS far FROM left l, right r, far f "
    "WHERE l.number = r.number AND r.is_new = f.is_new AND l.number <> 3"
)
FOUR = (
    "SELECT l.number, n.number AS other FROM left l, right r, far f, near n "
    "WHERE l.is_new = r.is_new AND f.number = r.number AND n.is_new = l.is_new AND n.number > f.number"
)
WINDOWED = (
    "SELECT l.number, f.number AS far, n.at FROM left l [RANGE 3 SECONDS], right r [RANGE 2 SECONDS], far f, "
    "near n [RANGE 1 SECOND] WHERE l.is_new = r.is_new AND f.is_new = r.is_new AND n.is_new = f.is_new"
)
SHORT = (
    "SELECT l.number, r.number AS other FROM left l [RANGE 1 SECOND], right r [RANGE 3 SECONDS], "
    "far f [RANGE 2 SECONDS] WHERE l.is_new = r.is_new AND l.is_new <> f.number"
)
TWICE = "SELECT a.is_new FROM left a, left b, right c WHERE a.is_new = b.is_new AND b.number = c.number"


def apart(text: str, joins: dict[tuple[str, ...], PeerId], worker: PeerId = WORKER, **chains: PeerId) -> Cut:
    return cut("q.1", parse(text, STREAMS).plan, 7, chains, PROXY, worker, "auto", joins)


def shape(found: Cut) -> list[tuple[int, object, str, int | None]]:
    return [
        (each.number, host, each.engine, each.consumer) for each, host in zip(found.subgraphs, found.hosts, strict=True)
    ]


def test_each_join_below_another_can_run_apart_unless_it_has_no_condition_or_windows_that_slide():
    def found(text: str) -> list[tuple[str, ...]]:
        return list(inner_joins(parse(text, STREAMS).plan))

    assert found(THREE) == [("l", "r")]
    assert found(FOUR) == [("l", "r"), ("l", "r", "f")]
    assert found("SELECT l.number FROM left l, right r WHERE l.number = r.number") == []
    assert found("SELECT l.number FROM left l, right r, far f WHERE l.number = f.number") == []
    assert found(THREE.replace("left l", "left l [RANGE 1 SECOND]")) == [("l", "r")]
    assert found(THREE.replace("left l", "left l [RANGE 2 SECONDS SLIDE 1 SECOND]")) == []
    assert found(THREE.replace("left l", "left l [ROWS 3]")) == []


def test_an_inner_join_runs_at_its_own_peer_and_its_sources_are_narrowed_for_it():
    found = apart(THREE, {("l", "r"): NORTH}, l=SOUTH, f=SOUTH)
    assert shape(found) == [
        (3, SOUTH, "inline", 2),
        (2, NORTH, "spark", 1),
        (4, SOUTH, "inline", 1),
        (1, WORKER, "spark", 0),
        (0, PROXY, "inline", None),
    ]
    parts = {each.number: each for each in found.subgraphs}
    assert [each.tells_old for each in found.subgraphs] == [True, True, False, False, False]
    assert parts[1].inputs == (FlowInput("l+r", 2, is_mixed=True), FlowInput("f", 4))
    assert [each.path[0] for each in parts[2].plan.columns] == ["l-number", "r-is_new", "is_new", "$time"]


def test_joins_of_one_peer_are_one_run():
    whole = shape(apart(FOUR, {}))
    assert shape(apart(FOUR, {("l", "r"): WORKER, ("l", "r", "f"): WORKER})) == whole
    both = apart(FOUR, {("l", "r"): NORTH, ("l", "r", "f"): NORTH})
    assert [sum(isinstance(op, Join) for op in walk(each.plan)) for each in both.subgraphs] == [2, 1, 0]
    assert [sum(isinstance(op, Join) for op in walk(each.plan)) for each in apart(FOUR, {}).subgraphs] == [3, 0]


def test_at_the_subscribers_peer_the_last_join_needs_no_relay():
    found = apart(THREE, {("l", "r"): NORTH}, worker=PROXY)
    assert shape(found) == [(1, NORTH, "spark", 0), (0, PROXY, "spark", None)]


def test_what_inner_joins_make_has_one_name_whoever_makes_it():
    one = apart(FOUR, {("l", "r"): NORTH}).subgraphs[0].derived
    assert one.startswith("derived-")
    assert apart(FOUR, {("l", "r"): SOUTH, ("l", "r", "f"): NORTH}, l=WORKER).subgraphs[1].derived == one
    assert apart(THREE, {("l", "r"): NORTH}).subgraphs[0].derived != one


class Runs:
    """All subgraphs of one attempt, with an engine and no network between them."""

    def __init__(self, found: Cut, resume: Progress) -> None:
        self.engine, self.results, self.said = ReferenceEngine(), list[Row](), resume
        self.runs: dict[int, Run] = {}
        self.unread = 0  # Rows that no state needs.
        self._sequences: Counter[int] = Counter()
        for each in found.subgraphs:
            host = None if each.consumer is None else PROXY
            share = found.share_of(each, resume)
            deploy = Deploy(query="q.1", attempt=1, subgraph=each, consumer_host=host, resume=share)
            run = self.runs[each.number] = Run(deploy, f"q.1.{each.number}~1", now=0)
            self._perform(run, (run.start(), []))

    def publish(self, stream: str, first: int, rows: list[Row]) -> None:
        """Rows, to whoever reads the stream so far back."""
        for run in self.runs.values():
            for each in run.deploy.subgraph.inputs:
                if isinstance(each, FlowInput) or each.stream != stream:
                    continue
                since = max([first, *(position.next for position in run.start_positions(each.alias))])
                self.unread += min(since - first, len(rows))
                if since < first + len(rows):
                    left = rows[since - first :]
                    batch = Batch(ORIGINS[stream], since, len(left), 1000 << COUNT_BITS, SCHEMA.encode(left))
                    self._perform(run, run.take_batch(each.alias, batch, now=0))

    def _perform(self, run: Run, outcome: tuple[list[Effect], list[Results]]) -> None:
        effects, results = outcome
        for effect in effects:
            match effect:
                case StartRun():
                    self.engine.start(effect)
                case FeedRun(number=number):
                    self._hand_on(run, run.finished(number, self.engine.feed(effect)))
        self._hand_on(run, results)

    def _hand_on(self, run: Run, results: list[Results]) -> None:
        subgraph = run.deploy.subgraph
        for each in results:
            if subgraph.consumer is None:
                self.results += each.rows
                self.said = each.reached or self.said
                continue
            message = flow(
                encode_rows(run.plan.columns, each.rows),
                len(each.rows),
                each.progress,
                sequence=self._sequences[subgraph.number],
                subgraph=subgraph.number,
                is_new=each.is_new,
                is_whole=each.reached is not None,
            )
            self._sequences[subgraph.number] += 1
            reader = self.runs[subgraph.consumer]
            self._perform(reader, reader.take_flow(subgraph.consumer_alias, message, now=0))


def published(rng: Random, count: int) -> dict[str, list[Row]]:
    return {name: [(rng.randrange(5), rng.randrange(3), at(place)) for place in range(count)] for name in NAMES}


def batches(rng: Random, rows: dict[str, list[Row]]) -> Iterator[tuple[str, int, list[Row]]]:
    """All rows, those of each stream in order, in batches of any size, streams one after the other as it comes."""
    reached = dict.fromkeys(rows, 0)
    while left := [name for name in rows if reached[name] < len(rows[name])]:
        name = rng.choice(left)
        first = reached[name]
        count = min(rng.randint(1, 4), len(rows[name]) - first)
        reached[name] += count
        yield name, first, rows[name][first : first + count]


PLACES: tuple[dict[tuple[str, ...], PeerId], ...] = (
    {("l", "r"): NORTH, ("a", "b"): NORTH},
    {("l", "r"): NORTH, ("l", "r", "f"): SOUTH, ("a", "b"): PROXY},
    {("l", "r", "f"): NORTH},
)


@pytest.mark.parametrize("text", [THREE, FOUR, TWICE, WINDOWED, SHORT])
@pytest.mark.parametrize("seed", range(12))
def test_attempt_after_attempt_every_result_is_told_once(text: str, seed: int):
    """Each attempt begins anywhere among the rows, after one that ended where it could say how far it was."""
    rng = Random(f"{seed} {text}")
    plan = parse(text, STREAMS).plan
    rows, told, resume = published(rng, 9), list[Row](), Progress()
    for upto in (2, 5, 8, 9):
        joins = rng.choice(PLACES)
        chains = {alias: rng.choice([NORTH, SOUTH, WORKER]) for alias in "lrfnabc" if rng.random() < 0.5}
        runs = Runs(apart(text, joins, rng.choice([PROXY, WORKER]), **chains), resume)
        there = {name: rows[name][: upto if upto == 9 else upto - rng.randint(0, 1)] for name in rows}
        for name, first, some in batches(rng, there):
            runs.publish(name, first, some)
        told += runs.results
        resume = runs.said
        assert len(resume.covers) == len(sources(plan)), "it can be said, once all is back"
    if text is SHORT:
        assert runs.unread, "of rows whose windows are over"
    streams = {name: [Tuple(row[2], row, place) for place, row in enumerate(rows[name])] for name in rows}
    assert Counter(told) == Counter(each.row for each in evaluate(plan, streams)), f"seed {seed}"


def test_until_an_inner_join_has_its_rows_back_it_is_not_said_what_results_cover():
    resume = Progress(tuple(Reach(alias, ORIGINS[name], 1) for alias, name in (("l", "left"), ("r", "right"))))
    runs = Runs(apart(THREE, {("l", "r"): NORTH}), resume)
    rows: list[Row] = [(1, 1, at(1))]
    runs.publish("far", 0, rows)
    runs.publish("left", 0, rows)
    assert (runs.results, runs.said) == ([], resume)
    runs.publish("right", 0, rows)
    assert runs.results == [(1, 1, at(1))], "an old pair meets a new row"
    assert [(each.alias, each.next) for each in runs.said.covers] == [("l", 1), ("r", 1), ("f", 1)]
