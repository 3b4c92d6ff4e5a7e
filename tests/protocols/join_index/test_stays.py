"""Windows bound what evaluators keep, and who comes too late for that is noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from protocols.clock import COUNT_BITS
from protocols.delivery.messages import Origin
from protocols.effects import Send, Tell
from protocols.ids import Millis
from protocols.join_index.evaluator import Evaluator
from protocols.join_index.keys import value_text
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import LEFT, RIGHT, JoinQuery, JoinResults, Load, Parcel, Receipt, SentTo, Side
from protocols.join_index.selections import Member
from protocols.join_index.tables import Tables
from protocols.subgraphs import ALGORITHMS, Algorithm, AttemptLost
from queries.catalogue import DAY_MS
from tests.protocols.join_index.posing import deployment, in_place, routed
from tests.protocols.join_index.things import EVALUATOR, PUBLISHER, R_B, REWRITER, S_E, STREAMS, SUBSCRIBER, query

LATE_MS = 30_000
WINDOWS_MS = (60_000, 20_000)
WINDOWED = "SELECT R.A, S.D FROM R [RANGE 60 SECONDS], S [RANGE 20 SECONDS] WHERE R.B = S.E"
SIDES: tuple[Side, Side] = (LEFT, RIGHT)


def asked(algorithm: Algorithm = "sai", name: str = "q~1", late_ms: Millis = LATE_MS) -> JoinQuery:
    return query(WINDOWED, algorithm, name, late_ms=late_ms)


def loads(member: Member, side: Side, number: int, value: int, at: Millis) -> list[Load]:
    """What rewriters make of one tuple; SAI rewrites by the left side."""
    name = "RS"[side]
    schema, values = STREAMS[name].schema, (value_text(value),)
    of = (schema, Origin(PUBLISHER, name, 1), at << COUNT_BITS, (number,), values, schema.encode([(number, value)]))
    attributes, group = (R_B, S_E), member.group
    match member.algorithm:
        case "dai-v":
            return [Load(None, group, side, *of)]
        case "sai":
            return [Load(S_E, group, LEFT, *of) if side == LEFT else Load(S_E, b"", LEFT, *of)]
    return [Load(attributes[side], b"", LEFT, *of), Load(attributes[1 - side], group, side, *of)]


class Kept:
    """The tables of an evaluator, and what they tell."""

    def __init__(self, *queries: JoinQuery) -> None:
        self.tables = Tables(JoinLimits(away_ms=DAY_MS))
        self.pairs: Counter[tuple[Any, ...]] = Counter()
        self.late: list[str] = []
        for each in queries:
            self.tables.know(each, now=0)

    def take(self, side: Side, number: int, value: int, at: Millis, now: Millis) -> None:
        member = next(iter(self.tables.queries.values()))
        for load in loads(member, side, number, value, at):
            done(self.tables.take(load, now))
        self.late += self.tables.late
        self.tables.late.clear()
        for _, results in self.tables.results():
            self.pairs.update(member.meeting.schema.decode(results.rows))
        self.sweep(now)
        self.tables.validate()

    def sweep(self, now: Millis) -> None:
        self.tables.sweep(now)
        while self.tables.chores:
            done(self.tables.chores.popleft())


def done(work: Iterator[None]) -> None:
    """Do all of it."""
    for _ in work:
        pass


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_for_hours_a_window_is_kept_and_no_more(algorithm: Algorithm):
    """A tuple in five seconds on each side, some of them late, for three hours: all pairs, in tables of one size."""
    seed = 6
    luck = Random(seed)
    evaluator = Kept(asked(algorithm))
    tuples = [(side, number, luck.randrange(3), 5000 * number) for number in range(3 * 720) for side in SIDES]
    delays_ms = (5, 300, LATE_MS - 2000)
    arrivals = sorted((each[-1] + luck.choice(delays_ms), each) for each in tuples)
    most = 0
    for now, each in arrivals:
        evaluator.take(*each, now)
        most = max(most, evaluator.tables.stored)
    assert not evaluator.late, f"seed={seed}"
    missing, extra = pairs(tuples) - evaluator.pairs, evaluator.pairs - pairs(tuples)
    assert (len(missing), len(extra)) == (0, 0), f"seed={seed}"
    copies = 1 if algorithm in ("sai", "dai-v") else 2
    kept_ms = sum(window_ms + 2 * LATE_MS for window_ms in WINDOWS_MS)
    assert most <= copies * kept_ms // 5000 + 2, f"{most} tuples and triggers, seed={seed}"


def pairs(tuples: list[tuple[Side, int, int, Millis]]) -> Counter[tuple[Any, ...]]:
    """What the query finds: the later was published while the earlier was in its window."""
    by_time = {(side, at): (number, value) for side, number, value, at in tuples}
    found: Counter[tuple[Any, ...]] = Counter()
    for (side, at), (number, value) in by_time.items():
        if side == LEFT:
            for other_at in range(at - WINDOWS_MS[RIGHT], at + WINDOWS_MS[LEFT] + 1, 5000):
                other, same = by_time.get((RIGHT, other_at), (0, -1))
                if same == value:
                    found[number, other] += 1
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("first", SIDES)
def test_a_tuple_too_late_for_what_it_might_have_met_is_noticed(algorithm: Algorithm, first: Side):
    second = RIGHT if first == LEFT else LEFT
    evaluator = Kept(asked(algorithm))
    evaluator.take(first, 0, 7, at=1000, now=1000)
    gone_at = 1000 + WINDOWS_MS[first] + LATE_MS
    evaluator.sweep(gone_at - 1)
    assert evaluator.tables.stored
    evaluator.sweep(gone_at)
    assert not evaluator.tables.stored
    evaluator.take(second, 0, 7, at=1000 + WINDOWS_MS[first] + 1, now=gone_at)
    assert evaluator.late == [], "it could not have met what is gone"
    evaluator.take(second, 1, 7, at=1000 + WINDOWS_MS[first], now=gone_at)
    evaluator.take(second, 2, 7, at=1000, now=gone_at)
    assert evaluator.late == ["q~1", "q~1"], "for each of them, whoever brings it"


def test_that_a_tuple_was_late_is_told_with_a_number_that_the_receipt_names():
    evaluator = Evaluator(EVALUATOR, JoinLimits())
    evaluator.begin(0)
    asked_for = asked(late_ms=0)
    member = Member(asked_for)

    def parcel(number: int, load: Load) -> Parcel:
        return Parcel(number=number, loads=(load,), queries=(asked_for,), counts_on=True, settled=1)

    evaluator.unpack(REWRITER, parcel(1, *loads(member, LEFT, 0, 7, at=0)), now=0)
    evaluator.sweep(WINDOWS_MS[LEFT])
    effects = evaluator.unpack(REWRITER, parcel(2, *loads(member, RIGHT, 0, 7, at=0)), now=WINDOWS_MS[LEFT])
    assert effects == [
        Send(SUBSCRIBER, JoinResults(life=1, subscriber_life=0, sequence=1, results=(), late=("q~1",))),
        Send(REWRITER, Receipt(number=2, life=1, sent=(SentTo(SUBSCRIBER, 0, 1),))),
    ]
    effects = evaluator.unpack(EVALUATOR, parcel(1, *loads(member, RIGHT, 0, 7, at=0)), now=WINDOWS_MS[LEFT])
    assert Send(EVALUATOR, Receipt(number=1, life=1, sent=(SentTo(SUBSCRIBER, 0, 2),))) in effects, "another rewriter"
    evaluator.validate()


def test_what_is_gone_since_before_a_query_was_known_does_not_concern_it():
    """It comes again for this query. An attempt would never come to an end of it otherwise."""
    evaluator = Kept(asked(), asked(name="p~1"))
    evaluator.take(LEFT, 0, 7, at=1000, now=1000)
    evaluator.sweep(1000 + WINDOWS_MS[LEFT] + LATE_MS)
    now = DAY_MS // 2
    evaluator.tables.know(asked(name="q~2"), now)
    evaluator.take(RIGHT, 0, 7, at=1000, now=now)
    assert evaluator.late == ["p~1"]
    evaluator.take(LEFT, 0, 7, at=1000, now=now)
    assert evaluator.pairs == Counter({(0, 0): 2}), "for p and for q"


def test_a_query_that_allows_for_more_has_its_tuples_kept_for_longer():
    evaluator = Kept(asked(), asked(name="p~1", late_ms=4 * LATE_MS))
    evaluator.take(LEFT, 0, 7, at=1000, now=1000)
    evaluator.take(RIGHT, 0, 7, at=1000, now=1000 + WINDOWS_MS[LEFT] + 4 * LATE_MS - 1)
    assert (evaluator.late, evaluator.pairs) == ([], Counter({(0, 0): 2}))


def test_the_next_attempt_allows_for_tuples_that_are_twice_as_late():
    queries = in_place(late_ms=LATE_MS)
    for attempt, late_ms in enumerate((LATE_MS, 2 * LATE_MS, 4 * LATE_MS), start=1):
        if attempt > 1:
            effects = queries.deploy(deployment(attempt), now=attempt)
            (posed, _) = routed(queries, effects)
            assert posed.query.late_ms == late_ms
        reason = f"a tuple was more than {late_ms} ms late for its windows"
        message = JoinResults(life=100, subscriber_life=0, sequence=attempt, results=(), late=(f"q~{attempt}",))
        assert Tell(AttemptLost("q", attempt, reason)) in queries.results(EVALUATOR, message, now=attempt)
    queries.deploy(deployment(4), now=2 * DAY_MS)
    assert queries.attempts["q~4"].join.query.late_ms == 8 * LATE_MS
    queries.validate()
