"""No event of the join index does much: what would take long is done in turns, and finds the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from protocols.delivery.messages import Batch, Origin, Rows
from protocols.effects import Effect, Send
from protocols.inside import Inside
from protocols.join_index.evaluator import TESTS_PER_TURN, Evaluator
from protocols.join_index.keys import value_text
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import JoinResults, Load, Parcel, QueryIndexed, Receipt
from protocols.join_index.reader import PIECE_ROWS
from protocols.join_index.rewriter import Rewriter
from protocols.join_index.selections import Member
from protocols.join_index.tables import Tables
from queries.schema import Row
from tests.protocols.join_index.rewriting import opened, parcels, posed
from tests.protocols.join_index.things import EVALUATOR, PUBLISHER, REWRITER, S_E, STREAMS, SUBSCRIBER, query

SQL = "SELECT R.A, S.D FROM R, S WHERE R.B = S.E AND R.A >= S.D + 4000 AND R.A <= S.D + 4000"
QUERY = query(SQL, name="q~1", life=9)
MANY, SOME = 5000, 200


class Counted:
    """An evaluator whose tests are counted, event by event."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.evaluator = Evaluator(EVALUATOR, JoinLimits())
        self.evaluator.begin(100)
        self.most = self.turns = self._tests = 0
        self.effects: list[Effect] = []
        before = Tables._pair

        def counted(tables: Tables, members: Any, *pair: Any) -> None:
            self._tests += len(members)
            before(tables, members, *pair)

        monkeypatch.setattr(Tables, "_pair", counted)

    def unpack(self, parcel: Parcel) -> None:
        sender = SUBSCRIBER if parcel.over else REWRITER
        self._note(self.evaluator.unpack(sender, parcel, now=100))

    def go_on(self) -> None:
        while self.evaluator.has_work:
            self._note(self.evaluator.go_on(100))

    def _note(self, effects: list[Effect]) -> None:
        self.effects += effects
        self.most, self._tests = max(self.most, self._tests), 0
        self.turns += 1
        self.evaluator.validate()

    @property
    def messages(self) -> list[Any]:
        return [each.message for each in self.effects if isinstance(each, Send)]

    @property
    def rows(self) -> Counter[Row]:
        schema = Member(QUERY).meeting.schema
        told = [each for message in self.messages if isinstance(message, JoinResults) for each in message.results]
        return Counter(row for each in told for row in schema.decode(each.rows))

    @property
    def receipts(self) -> list[int]:
        return [message.number for message in self.messages if isinstance(message, Receipt)]


def load(stream: str, first: int, count: int, group: bytes = b"") -> Load:
    """Tuples of one value."""
    schema, numbers = STREAMS[stream].schema, range(first, first + count)
    rows = schema.encode([(n, 7) for n in numbers])
    of = (Origin(PUBLISHER, stream, 1), 1 << 16, tuple(numbers), (value_text(7),) * count, rows)
    return Load(S_E, group, 0, schema, *of)


def parcel(number: int, *loads: Load, queries: Any = (), after: int = 0) -> Parcel:
    return Parcel(number=number, loads=loads, queries=queries, counts_on=True, after=after, settled=1)


GROUP = Member(QUERY).group


def stored(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Many triggers of one value."""
    counted = Counted(monkeypatch)
    counted.unpack(parcel(1, load("R", 0, MANY, GROUP), queries=(QUERY,)))
    counted.go_on()
    assert counted.receipts == [1]
    return counted


@pytest.mark.slow
def test_a_parcel_against_many_tuples_of_one_value_is_joined_in_turns(monkeypatch: pytest.MonkeyPatch):
    counted = stored(monkeypatch)
    counted.unpack(parcel(2, load("S", 0, SOME)))
    counted.unpack(parcel(3, load("S", SOME, SOME), after=2))
    counted.unpack(parcel(2, load("S", 0, SOME)))
    assert counted.receipts == [1], "neither is joined yet"
    counted.go_on()
    assert counted.receipts == [1, 2, 3], "one that came again meanwhile is joined once"
    assert counted.rows == Counter((n + 4000, n) for n in range(2 * SOME))
    assert counted.most <= TESTS_PER_TURN
    assert counted.turns >= 2 * SOME * MANY // TESTS_PER_TURN


@pytest.mark.parametrize("end", [{"over": ("q~1",)}, {"released": ("q~1",)}])
def test_a_query_that_ends_while_parcels_wait_leaves_nothing(monkeypatch: pytest.MonkeyPatch, end: Any):
    counted = stored(monkeypatch)
    counted.unpack(parcel(2, load("S", 0, SOME)))
    counted.unpack(parcel(3, load("S", SOME, SOME), queries=(query(name="p~1"),)))
    counted.unpack(Parcel(number=0, **(end | {name: (*each, "p~1") for name, each in end.items()})))
    counted.go_on()
    tables = counted.evaluator.tables
    assert counted.evaluator.is_empty()
    assert (tables.queries, tables._loaded, tables._buckets) == ({}, {}, {})


def test_a_new_life_forgets_the_parcels_that_wait(monkeypatch: pytest.MonkeyPatch):
    counted = stored(monkeypatch)
    counted.unpack(parcel(2, load("S", 0, SOME)))
    counted.evaluator.begin(200)
    assert not counted.evaluator.has_work
    counted.unpack(parcel(2, load("S", 0, 1), queries=(QUERY,)))
    counted.go_on()
    assert counted.receipts == [1, 2]


def test_recent_tuples_are_replayed_in_turns():
    rewriter = Rewriter(REWRITER, JoinLimits(), Inside())
    request = opened(rewriter, posed())
    schema, count = STREAMS["R"].schema, 1000
    for first in range(0, 10 * count, count):
        numbers = range(first, first + count)
        batch = Batch(Origin(PUBLISHER, "R", 1), first, count, 10 << 16, schema.encode([(n, n) for n in numbers]))
        receive(rewriter, rewriter.answered(request, Rows(batches=(batch,)), now=10))
    effects = rewriter.index(SUBSCRIBER, posed("q2~1", at=10), now=11)
    replayed = 0
    while True:
        rows = sum(len(each.sequences) for sent in parcels(effects) for each in sent.message.loads)  # type: ignore[attr-defined]
        assert rows <= 2 * PIECE_ROWS
        replayed += rows
        done = receive(rewriter, effects)
        if not rewriter.has_work:
            break
        assert not done, "the query is indexed once all of it is sent"
        effects = rewriter.go_on(11)
    assert replayed == 10 * count
    assert done == ["q2~1"]
    rewriter.validate()


def receive(rewriter: Rewriter, effects: list[Effect]) -> list[str]:
    """Acknowledge all parcels; the queries that are then indexed."""
    answers = [
        answer
        for each in parcels(effects)
        for answer in rewriter.receipt(each.peer, Receipt(number=each.message.number, life=100), now=11)  # type: ignore[attr-defined]
    ]
    sent = [each.message for each in (*effects, *answers) if isinstance(each, Send)]
    return [message.query for message in sent if isinstance(message, QueryIndexed)]
