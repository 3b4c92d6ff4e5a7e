"""Windows of time in the daemon: the machine of one subgraph, and how its work is continued."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import pytest

from protocols.clock import COUNT_BITS
from protocols.delivery.messages import FINISHED_US, Batch, Origin, Publishers, Rows
from protocols.effects import Effect, SetTimer, Tell
from protocols.events import Answered, Received, TimerFired
from protocols.execution import aggregation, executor
from protocols.execution.aggregation import RESULTS_MAX, Aggregations
from protocols.execution.cut import cut, is_stateful
from protocols.execution.executor import WORK
from protocols.execution.run import RunOutput, SubgraphRun
from protocols.execution.soundness import unsound_subgraph
from protocols.subgraphs import DeployRefused, Inline, Progress, ResultsReady, Subgraph
from queries.catalogue import Stream
from queries.expressions import EPOCH, MICROSECOND, Named
from queries.plan import Operator, Project, sources
from queries.query import parse
from queries.reference import Tuple, evaluate, same_rows
from queries.schema import Row
from queries.slices import is_sliceable
from tests.protocols.execution.parts import (
    LEFT,
    PROXY,
    SCHEMA,
    SOUTH,
    STREAMS,
    WEIGHED,
    WINDOWS,
    Host,
    Results,
    at,
    batch,
    cut_of,
    deploy_of,
    numbered,
    reach,
    run_of,
    silence,
)
from tests.queries import random_sql
from tests.queries.random_queries import Queries
from tests.seeds import draw_seed

SECOND = 1_000_000
BY_PART = "SELECT part, count(*) AS n, sum(number) AS total FROM left [RANGE 4 SECONDS SLIDE 2 SECONDS] GROUP BY part"


def worked(run: SubgraphRun) -> list[RunOutput]:
    """What comes of all its work."""
    assert run.windows is not None
    outputs: list[RunOutput] = []
    while run.has_work:
        run.windows.aggregation.work()
        outputs += run.worked()
    return outputs


def take(run: SubgraphRun, each: Batch, alias: str = "left", now: int = 0) -> list[Row]:
    effects, results = run.take_batch(alias, each, now)
    assert (effects, results) == ([], []), "the work is done when there is time"
    return [row for output in worked(run) for row in output.rows]


def test_a_window_is_told_once_the_watermark_has_passed_it_with_what_it_covers():
    run = run_of(WINDOWS)
    assert run.start() == []
    assert take(run, numbered(LEFT, 0, 2)) == []
    run.take_batch("left", numbered(LEFT, 2, 1), now=0)
    (output,) = worked(run)
    covers = (reach("left", LEFT, 3),)
    assert output == RunOutput([(2,)], True, Progress(covers, (), 2 * SECOND, 2 * SECOND), run.reached)
    assert run.reached == Progress(covers, (), 2 * SECOND, 2 * SECOND)
    assert run.status(7, now=0).state_rows == 1
    assert not run.has_work


def test_windows_slide_over_groups_and_a_selection_above_sees_the_result():
    run = run_of(f"{BY_PART} HAVING sum(number) > 1")
    rows = ((1, 1, at(0)), (2, 2, at(1)), (4, 1, at(3)), (9, 9, at(6)))
    assert take(run, batch(LEFT, 0, *rows)) == [(2, 1, 2), (1, 2, 5), (2, 1, 2), (1, 1, 4)]


def test_a_late_row_counts_in_the_windows_that_are_open_and_is_counted_if_there_is_none():
    run = run_of(BY_PART)
    assert take(run, numbered(LEFT, 0, 7)) == [(1, 2, 1), (1, 4, 6), (1, 4, 14)]
    assert take(run, batch(LEFT, 7, (100, 1, at(5)), (100, 1, at(1)))) == []
    assert run.status(7, now=0).inputs[0].late == 1
    assert take(run, batch(LEFT, 9, (0, 1, at(8)))) == [(1, 4, 4 + 5 + 6 + 100)]


def test_the_next_attempt_tells_no_window_again_and_loses_none():
    run = run_of(WINDOWS)
    assert [row for second in range(8) for row in take(run, numbered(LEFT, second, 1))] == [(2,), (2,), (2,)]
    again = run_of(WINDOWS, resume=run.reached)
    (low,) = again.start_positions("left")
    assert low.next == 5, "at the watermark, second 7, less the window's size"
    assert take(again, numbered(LEFT, 5, 3)) == [], "each window in it is told, or not complete"
    assert take(again, numbered(LEFT, 8, 3)) == [(2,), (2,)]


def test_a_branch_without_windows_tells_its_rows_at_once_and_old_ones_not_again():
    text = f"SELECT number FROM left WHERE part = 1 UNION ALL {WINDOWS}"
    run = run_of(text, resume=Progress((reach("left", LEFT, 2),), (reach("left", LEFT, 2),)))
    aliases = [each.alias for each in run.deploy.subgraph.inputs]
    run.meet(aliases[1], Publishers(origins=(LEFT,)), now=0)
    run.take_batch(aliases[0], numbered(LEFT, 0, 4), now=0)
    assert [row for output in worked(run) for row in output.rows] == [(2,), (3,)]
    run.take_batch(aliases[1], numbered(LEFT, 0, 4), now=0)
    assert [row for output in worked(run) for row in output.rows] == [(2,)]


def test_the_last_windows_close_when_every_publisher_has_finished():
    run = run_of(WINDOWS)
    take(run, numbered(LEFT, 0, 3))
    run.take_silence("left", silence(LEFT, 3, is_idle=False, before_us=FINISHED_US), now=0)
    assert run.tick(now=0) == ([], [])
    assert [each.rows for each in worked(run)] == [[(1,)]]
    assert run.status(7, now=0).state_rows == 0


MANY = "SELECT number, count(*) AS n FROM left [RANGE 2 SECONDS] GROUP BY number"


def many_groups(host: Host, count: int) -> Iterator[list[Effect]]:
    """Rows of as many groups, then one that closes their window: the effects of each event."""
    (subgraph,) = cut_of(MANY).subgraphs
    (request,) = host.open(deploy_of(subgraph))
    host.happen(Answered(request, Publishers(origins=(LEFT,)), last=False))
    rows = [(number, 1, at(0)) for number in range(count)]
    batches = (Batch(LEFT, 0, count, 1000 << COUNT_BITS, SCHEMA.encode(rows)), batch(LEFT, count, (0, 1, at(2))))
    for each in batches:
        yield host.happen(Answered(request, Rows(batches=(each,)), last=False))
        while host.executor._busy:
            yield host.happen(TimerFired(WORK))


def test_a_window_of_many_groups_is_closed_in_many_short_events():
    """Its first results leave before it is known what they cover: the proxy remembers them one by one till then."""
    host, count, longest_s, results = Host(peer=PROXY), 30_000, 0.0, []
    events = many_groups(host, count)
    begin = time.thread_time()
    for number, effects in enumerate(events):
        took_s = time.thread_time() - begin
        longest_s = max(longest_s, took_s if number else 0.0)  # The first decodes all rows.
        results += [each.event for each in effects if isinstance(each, Tell) and isinstance(each.event, ResultsReady)]
        begin = time.thread_time()
    assert Counter(row for each in results for row in each.rows) == Counter((number, 1) for number in range(count))
    assert max(len(each.rows) for each in results) < 2 * RESULTS_MAX
    assert [each.progress is not None for each in results] == [False] * (len(results) - 1) + [True]
    assert longest_s < 0.05


def test_two_busy_subgraphs_take_turns_and_one_that_ends_is_forgotten():
    host = Host(peer=PROXY)
    for effects in many_groups(host, 20_000):
        if host.executor._busy:
            assert SetTimer(WORK, 0) in effects
            break
    key = next(iter(host.executor.hosted))
    host.executor._end(key)
    assert SetTimer(WORK, 0) not in host.happen(TimerFired(WORK))
    assert not host.executor._busy


def test_the_windows_that_keep_most_are_given_up_when_all_keep_too_much(monkeypatch: pytest.MonkeyPatch):
    host = Host(peer=PROXY)
    next(many_groups(host, 1000))
    monkeypatch.setattr(executor, "STATE_ROWS_MAX", 1000)
    host.tick()
    assert len(host.executor.hosted) == 1
    monkeypatch.setattr(executor, "STATE_ROWS_MAX", 999)
    told = [each.event.message for each in host.tick() if isinstance(each, Tell) and isinstance(each.event, Received)]
    (refused,) = told
    assert isinstance(refused, DeployRefused)
    assert refused.is_too_large
    assert refused.reason == "its windows keep 1000 partial aggregates, and all here may keep 999"
    assert host.executor.hosted == {}


@pytest.mark.parametrize(
    ("text", "is_inline"),
    [
        (WINDOWS, True),
        (f"{WINDOWS} UNION ALL SELECT number FROM right", True),
        ("SELECT DISTINCT part FROM left [RANGE 2 SECONDS]", True),
        ("SELECT count(*) AS n FROM left [ROWS 3]", False),
        ("SELECT l.part, count(*) AS n FROM left l [RANGE 1 SECOND], right r [RANGE 1 SECOND] "
         "WHERE l.part = r.part GROUP BY TUMBLE(INTERVAL '1' MINUTE), l.part", False),
    ],
)  # fmt: skip
def test_what_the_daemon_runs_itself(text: str, is_inline: bool):
    assert is_sliceable(parse(text, STREAMS).plan) is is_inline
    (engine,) = {each.engine.name for each in cut_of(text).subgraphs}
    assert engine == ("inline" if is_inline else "spark")


def test_a_plan_that_no_text_means_is_refused_and_ends_nothing():
    """A member may send it: something above a union, of which a branch has windows."""
    union = parse(f"{WINDOWS} UNION ALL SELECT number FROM right", STREAMS).plan
    plan = Project(union, tuple(Named("n", each) for each in union.columns))
    inputs = cut_of(f"{WINDOWS} UNION ALL SELECT number FROM right").subgraphs[0].inputs
    assert unsound_subgraph(Subgraph(0, plan, inputs, Inline())) == (
        "its plan has state, which only an engine of its own can keep"
    )


TEXTS = (
    "SELECT part, count(*) AS n, sum(number) AS s, avg(weight) AS w, stddev(weight) AS d FROM left "
    "[RANGE 7 SECONDS SLIDE 3 SECONDS] WHERE number <> 2 GROUP BY part",
    "SELECT part, number, min(weight) AS low, max(weight) AS high FROM left [RANGE 5 SECONDS] GROUP BY part, number",
    "SELECT count(DISTINCT part) AS n, sum(weight) AS w FROM left [RANGE 2 SECONDS SLIDE 5 SECONDS] "
    "HAVING count(*) > 1 UNION ALL SELECT number, weight FROM left WHERE part = 1",
)


@pytest.mark.parametrize("text", [*TEXTS[:2], pytest.param(TEXTS[2], marks=pytest.mark.slow)])
def test_random_rows_with_crashes_in_between_give_what_the_reference_says(text: str, monkeypatch: pytest.MonkeyPatch):
    """Two publishers, rows in and out of order, batches of any size, and a new attempt from the note now and then.

    Results leave in parts of two.
    """
    monkeypatch.setattr(aggregation, "RESULTS_MAX", 2)
    seed = draw_seed()
    for number in range(40):
        rng = random.Random(f"{seed}/{number}")
        Play(text, rng).run()


class Play:
    """One query over two publishers of a stream, until both have finished."""

    def __init__(self, text: str, rng: random.Random) -> None:
        self.rng, self.text = rng, text
        self.plan = parse(text, {"left": Stream("left", WEIGHED, "at", 20_000)}).plan
        self.now = 0
        self.origins = (LEFT, Origin(SOUTH, "left", 1))
        self.rows: dict[Origin, list[Row]] = {origin: self._rows(rng.randrange(1, 40)) for origin in self.origins}
        self.results = Results()

    def _rows(self, count: int) -> list[Row]:
        luck = self.rng
        return [
            (luck.randrange(5), luck.randrange(3), luck.choice((0.1, 0.2, 1e17, -1e17, 3.5)),
             at(place * 0.7 - luck.randrange(15)))
            for place in range(count)
        ]  # fmt: skip

    def begin(self) -> None:
        self.results.begin()
        (subgraph,) = cut("q.1", self.plan, 7, {}, PROXY, PROXY, "auto").subgraphs
        self.run_ = SubgraphRun(deploy_of(subgraph, resume=self.results.note), "q.1.0~1", now=self.now)
        self.aliases = [each.alias for each in subgraph.inputs]
        for alias in self.aliases:
            self.run_.meet(alias, Publishers(origins=self.origins), self.now)
        self.read = {}
        for alias in self.aliases:
            begins = {each.origin: each.next for each in self.run_.start_positions(alias)}
            self.read |= {(alias, origin): begins.get(origin, 0) for origin in self.origins}

    def hear(self, outputs: list[RunOutput]) -> None:
        for each in outputs:
            self.results.hear(each.rows, each.reached)

    def step(self) -> bool:
        """Read a batch; whether there was one."""
        left = [each for each, upto in self.read.items() if upto < len(self.rows[each[1]])]
        if not left:
            return False
        alias, origin = self.rng.choice(left)
        first = self.read[alias, origin]
        rows = self.rows[origin][first : first + self.rng.randrange(1, 6)]
        self.read[alias, origin] += len(rows)
        stamp = (1_000_000 + self.now) << COUNT_BITS
        self.hear(
            self.run_.take_batch(alias, Batch(origin, first, len(rows), stamp, WEIGHED.encode(rows)), self.now)[1]
        )
        self.work()
        return True

    def work(self) -> None:
        self.hear(worked(self.run_))

    def run(self) -> None:
        self.begin()
        while self.step():
            if self.rng.random() < 0.1:
                self.results.lose(self.rng)
                self.begin()
        for alias in self.aliases:
            for origin in self.origins:
                upto = len(self.rows[origin])
                self.run_.take_silence(alias, silence(origin, upto, is_idle=False, before_us=FINISHED_US), self.now)
        self.hear(self.run_.tick(self.now)[1])
        self.work()
        tuples = [
            Tuple(at(0), row, f"{origin.publisher.short}/{place}")
            for origin in self.origins
            for place, row in enumerate(self.rows[origin])
        ]
        assert sum(each.late for each in self.run_.status(7, self.now).inputs) == 0
        patient = parse(self.text, {"left": Stream("left", WEIGHED, "at", 1 << 40)}).plan  # To which nothing is late.
        expected = Counter(each.row for each in evaluate(patient, {"left": tuples}))
        assert self.results.all == expected


def test_random_queries_in_the_daemon_have_the_results_of_the_reference():
    seed = draw_seed()
    rng = random.Random(seed)
    found = tried = 0
    while tried < 40:
        text = Queries(rng).query().ours
        plan = parse(text, random_sql.STREAMS).plan
        if not (is_sliceable(plan) and is_stateful(plan)):
            continue
        tried += 1
        lists = random_sql.data(rng, 30)
        due = [result.row for result in evaluate(plan, lists)]
        assert same_rows(results_of(plan, lists, rng), due), text
        found += len(due)
    assert found > 2 * tried, "the queries find something"


def results_of(plan: Operator, lists: dict[str, list[Tuple]], rng: random.Random) -> list[Row]:
    """What the daemon makes of rows in the order of their times, some at once."""
    arrivals: list[tuple[datetime, str, Row]] = []
    for source in sources(plan):
        names = [each.name for each in source.schema.fields]
        for each in lists[source.stream]:
            time = each.row[names.index(source.event_time)] if source.event_time is not None else each.time
            arrivals.append((time, source.alias, (*each.row, time)))
    arrivals.sort(key=lambda arrival: arrival[0])
    run = Aggregations().enter("q", plan, None)
    found: list[Row] = []
    place = number = 0
    while place <= len(arrivals):
        some = arrivals[place : place + rng.randrange(1, 9)]
        watermark_us = (some[-1][0] - EPOCH) // MICROSECOND if some else 1 << 60
        aliases = [*dict.fromkeys(alias for _, alias, _ in some)] or [arrivals[0][1]]
        for alias in aliases:
            number += 1
            rows = [row for _, of, row in some if of == alias]
            run.feed(number, alias, rows, True, watermark_us if alias is aliases[-1] else None)
        while run.aggregation.has_work:
            run.aggregation.work()
            found += [row for made in run.taken() for row in made.rows]
        place += max(1, len(some))
    return found
