"""Queries at a peer alone, with the reference as its engine: from text to results, through crashes, to nothing left."""

from __future__ import annotations

from collections import Counter

import pytest

from protocols.catalogue.messages import CreateStream, ListStreams, StreamsListed
from protocols.catalogue.streams import StreamDefinition
from protocols.delivery.messages import OpenSubscription, Publish, Published
from protocols.execution.engine import RunFailed
from protocols.execution.messages import (
    ListQueries,
    QueriesListed,
    QueryAccepted,
    QueryShown,
    QueryStarting,
    ShowQuery,
    StopQuery,
    SubmitQuery,
)
from protocols.messages import Done, Refused
from queries.query import parse
from queries.reference import Tuple, evaluate
from queries.schema import Row
from tests.protocols.execution.parts import JOIN, SCHEMA, SELECT, STREAMS, WINDOWS, Engined, at

SELF_JOIN = (
    "SELECT a.number, b.number AS other FROM left a [RANGE 2 SECONDS], left b [RANGE 2 SECONDS] "
    "WHERE a.part = b.part AND a.number < b.number"
)
UNION = "SELECT number FROM left WHERE part = 1 UNION ALL SELECT number + 100 FROM left WHERE part = 0"
LEFTS, RIGHTS = 'stream("left")/rows/row', 'stream("right")/rows/row'
WINDOW_JOIN = f"""for $w in {LEFTS} |at diff 2| let $n := max($w/number) for $r in {RIGHTS}
  where $r/number <= $n and $r/number > $n - 3 return <r> {{ $n }} {{ $r/number }} </r>"""
LISTS = f"""for $l in {LEFTS}[part = 1] return <l> {{ $l/number }} {{
  for $r in {RIGHTS} where $r/number >= $l/number - 3 return $r/number }} </l>"""
SHAPES = f"""<all> {{ for $w in {LEFTS} |at diff 3| let $n := count($w) return <w> {{ $n }} {{ $w/number }} </w> }}
  {{ for $r in {RIGHTS} where $r/part = 0 return $r/number }} </all>"""
TEXTS = (SELECT, JOIN, WINDOWS, SELF_JOIN, UNION, WINDOW_JOIN, LISTS, SHAPES)


class Asker(Engined):
    """Publishes rows of two streams, and keeps what the reference makes of them."""

    def begin(self) -> None:
        self.published: dict[str, list[Tuple]] = {name: [] for name in STREAMS}
        for name in STREAMS:
            definition = StreamDefinition(name=name, schema=SCHEMA, event_time="at")
            assert isinstance(self.answer(CreateStream(definition=definition)), Done)

    def submit(self, text: str, name: str) -> QueryAccepted:
        request = self.ask(SubmitQuery(text=text, name=name), within_ms=10_000)
        starting, accepted = self.answers[request]
        assert isinstance(starting, QueryStarting)
        assert isinstance(accepted, QueryAccepted)
        return accepted

    def put(self, stream: str, number: int) -> None:
        row = (number, number % 2, at(number))
        answer = self.answer(Publish(stream=stream, rows=SCHEMA.encode([row]), count=1))
        assert isinstance(answer, Published)
        self.published[stream].append(Tuple(at(number), row, f"{stream}/{number}"))  # type: ignore[arg-type]

    def expected(self, text: str) -> Counter[Row]:
        plan = parse(text, STREAMS).plan
        return Counter(result.row for result in evaluate(plan, self.published, final=False))

    def told(self, accepted: QueryAccepted) -> Counter[Row]:
        """Read the query's stream from its start, until nothing more comes."""
        self.requests += 1
        name = f"reader-{self.requests}"
        reading = self.ask(OpenSubscription(stream=accepted.stream, subscription=name, since="start"), within_ms=10_000)
        return Counter(self.rows(reading, accepted.schema))


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(None, id="no crash"),
        pytest.param(False, id="crash", marks=pytest.mark.slow),
        pytest.param(True, id="crash after a snapshot", marks=pytest.mark.slow),
    ],
)
def test_results_are_those_of_the_reference_once_each_whatever_happens_on_the_way(snapshot: bool | None):
    asker = Asker()
    asker.begin()
    accepted = {text: asker.submit(text, f"q{place}") for place, text in enumerate(TEXTS)}
    for number in range(12):
        for stream in STREAMS:
            asker.put(stream, number)
        asker.wait(300)
        if snapshot is not None and number in (4, 5, 9):
            asker.restart(snapshot=snapshot)
            asker.wait(5000 if number == 5 else 0)
    asker.wait(10_000)
    for text in TEXTS:
        assert asker.told(accepted[text]) == asker.expected(text), text


def test_a_query_that_is_stopped_leaves_nothing_behind():
    asker = Asker()
    asker.begin()
    for round_ in range(2):
        accepted = [asker.submit(text, f"q{place}") for place, text in enumerate(TEXTS)]
        for number in range(round_ * 5, round_ * 5 + 5):
            asker.put("left", number)
        asker.wait(1000)
        assert asker.runs
        for place in range(len(accepted)):
            assert isinstance(asker.answer(StopQuery(query=f"q{place}")), Done)
        asker.wait(30_000)
        peer = asker.peer
        assert asker.runs == {}
        assert peer.executor.hosted == {}
        assert peer.proxy.queries == {}
        assert peer.proxy._questions._asked == {}
        assert peer.inside.roles == {}
        assert peer.subscriber.subscriptions == {}
        assert not peer.publisher.outboxes["left"].feed.consumers
        listed = asker.answer(ListStreams())
        assert isinstance(listed, StreamsListed)
        assert [each.name for each in listed.streams] == ["left", "right"]
        assert peer.proxy.snapshot() == []


def test_replicated_results_of_a_peer_alone_are_told_and_kept_across_a_crash():
    asker = Asker()
    asker.begin()
    text = f"{SELECT} WITH (durability = replicated)"
    accepted = asker.submit(text, "q")
    for number in range(6):
        asker.put("left", number)
    asker.wait(1000)
    asker.restart()
    asker.put("left", 6)
    asker.wait(10_000)
    assert asker.peer.publisher.outboxes[accepted.stream].definition.durability == "replicated"
    assert asker.told(accepted) == asker.expected(SELECT)


def test_nobody_but_a_query_publishes_to_the_stream_of_its_results():
    asker = Asker()
    asker.begin()
    accepted = asker.submit(SELECT, "q")
    for _ in range(2):
        refused = asker.answer(Publish(stream=accepted.stream, rows=accepted.schema.encode([(7,)]), count=1))
        assert isinstance(refused, Refused)
        assert (refused.code, refused.error) == (
            "invalid",
            f'stream "{accepted.stream}" is for the results of query "q" alone',
        )
        asker.put("left", 1)
        asker.wait(1000)
    assert asker.told(accepted) == Counter({(1,): 2})
    pretended = StreamDefinition(name="mine", schema=SCHEMA, query="q")
    refused = asker.answer(CreateStream(definition=pretended))
    assert isinstance(refused, Refused)
    assert refused.error == 'stream "mine": only a query makes the stream of its results'


def test_the_elements_around_a_union_are_told():
    asker = Asker()
    asker.begin()
    assert asker.submit(SHAPES, "q").envelope == ("all",)


def test_a_text_that_is_no_query_is_refused_and_forgotten():
    asker = Asker()
    asker.begin()
    refused = asker.answer(SubmitQuery(text="SELECT nubmer FROM left", name="q"))
    assert isinstance(refused, Refused)
    assert refused.code == "invalid"
    assert asker.answer(ListQueries()) == QueriesListed(queries=())
    assert isinstance(asker.answer(StopQuery(query="q")), Refused)


def test_two_queries_of_one_peer_have_two_names():
    asker = Asker()
    asker.begin()
    asker.submit(SELECT, "q")
    again = asker.answer(SubmitQuery(text=SELECT, name="q"))
    assert isinstance(again, Refused)
    assert again.code == "exists"
    bad = asker.answer(SubmitQuery(text=SELECT, name="no dots.please"))
    assert isinstance(bad, Refused)


def test_people_can_see_how_a_query_is_doing():
    asker = Asker()
    asker.begin()
    asker.submit(JOIN, "q")
    for number in range(5):
        asker.put("left", number)
        asker.put("right", number)
    asker.wait(3000)
    shown = asker.answer(ShowQuery(query="q"))
    assert isinstance(shown, QueryShown)
    ((status, engine),) = ((each.status, each.subgraph.engine.name) for each in shown.subgraphs)
    assert status is not None
    assert (shown.state, engine, status.rows_in) == ("running", "spark", 10)
    assert status.waiting <= 1, "the tick that tells it may just have let time go on"
    assert shown.results == status.rows_out == sum(asker.expected(JOIN).values())
    assert [(each.alias, each.rows, each.late, each.missed) for each in status.inputs] == [
        ("l", 5, 0, 0),
        ("r", 5, 0, 0),
    ]


def test_an_engine_that_dies_costs_an_attempt_and_no_result():
    asker = Asker()
    asker.begin()
    accepted = asker.submit(JOIN, "q")
    for number in range(8):
        asker.put("left", number)
        asker.put("right", number)
        if number in (2, 5):
            asker.happen(RunFailed(next(iter(asker.runs)), "it ran out of memory"))
        asker.wait(1000)
    asker.wait(10_000)
    assert asker.told(accepted) == asker.expected(JOIN)
    shown = asker.answer(ShowQuery(query="q"))
    assert isinstance(shown, QueryShown)
    assert "it ran out of memory" in shown.reason
