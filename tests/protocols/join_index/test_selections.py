"""Queries found by constants: nobody whom a tuple concerns is left out, and few are found whom it does not."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest

from protocols.join_index.condition import JoinCondition, condition_of
from protocols.join_index.messages import LEFT, RIGHT, JoinQuery, Side
from protocols.join_index.selections import Group, Member, Selections
from queries import sql
from queries.catalogue import Stream
from queries.compile import OnRow, on_row
from queries.expressions import conjunction, conjuncts, inputs_of
from queries.schema import Row, Schema
from tests.protocols.join_index.things import HOUR_MS, SUBSCRIBER

STREAMS = {
    "R": Stream("R", Schema.parse("A int, B int, x float null, d decimal, s string null, p record(n int)")),
    "S": Stream("S", Schema.parse("D int, E int")),
}
CONDITIONS = (
    *(f"R.A {sign} {value}" for sign in ("=", "<", "<=", ">", ">=", "<>") for value in (0, 1, "1.5", 3)),
    *("2 > R.A", "1 = R.A", "R.x > 1", "R.x = 2", "R.x <= 0.5", "R.d = 2.50", "R.d >= 1", "R.s = 'b'", "R.s > 'a'"),
    *("R.p.n = 1", "R.p.n < 2", "R.A + 0 = 1", "R.A = 1 OR R.B = 2", "R.s IS NULL", "R.x = R.A", "R.A IN (1, 2)"),
    *("S.D = 1", "S.D < 2", "S.D > R.A"),
)


def asked(number: int, condition: str) -> JoinQuery:
    text = "SELECT R.A, S.D FROM R, S WHERE R.B = S.E" + (f" AND {condition}" if condition else "")
    return JoinQuery(f"q{number}~1", SUBSCRIBER, 0, "sai", sql.plan(text, STREAMS).plan, HOUR_MS)


def a_row(luck: random.Random, side: Side) -> Row:
    if side == RIGHT:
        return (luck.randrange(4), 7, None)
    x = luck.choice((None, float("nan"), 0.5, 1.0, 2.0))
    d, s = luck.choice((Decimal(1), Decimal("2.5"), Decimal("2.500"))), luck.choice((None, "a", "b"))
    return (luck.randrange(4), 7, x, d, s, (luck.randrange(3),), None)


def left_selection(condition: JoinCondition) -> OnRow:
    """What must hold of the left tuple alone."""
    source = condition.sides[LEFT].source
    own = [part for part in conjuncts(condition.predicate) if inputs_of(part) == (source.alias,)]
    predicate = conjunction(tuple(own))
    return (lambda _: True) if predicate is None else on_row(predicate, source.columns)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_a_tuple_concerns_is_found(seed: int):
    luck = random.Random(seed)
    texts = [" AND ".join(f"({each})" for each in luck.sample(CONDITIONS, luck.randrange(4))) for _ in range(40)]
    members = {f"q{number}~1": Member(asked(number, text)) for number, text in enumerate(texts)}
    conditions = {name: condition_of(member.query.plan) for name, member in members.items()}
    wholes = {name: on_row(each.predicate, each.plan.input.columns) for name, each in conditions.items()}
    lefts = {name: left_selection(each) for name, each in conditions.items()}
    group = Group.of(next(iter(members.values())))
    for member in members.values():
        group.add(member)
    for name in luck.sample(sorted(members), 10):
        group.remove(name)
        del members[name]
    for _ in range(30):
        left, right = a_row(luck, LEFT), a_row(luck, RIGHT)
        concerned = {name for name in members if wholes[name](left + right) is True}
        found = [member.query.id for member in group.concerned(left, right)]
        assert concerned <= set(found), f"seed={seed}"
        assert len(found) == len(set(found)), f"seed={seed}"
        by_left = {name for name in members if lefts[name](left) is True}
        assert by_left <= {member.query.id for member in group.sides[LEFT].found(left)}, f"seed={seed}"
        assert group.sides[LEFT].filed.is_wanted(left) or not by_left, f"seed={seed}"


def selections(*conditions: str) -> Selections:
    filed = Selections.of(LEFT, STREAMS["R"].schema)
    for number, condition in enumerate(conditions):
        filed.add(Member(asked(number, condition)))
    return filed


def found(filed: Selections, **values: Any) -> list[str]:
    row = {"A": 0, "B": 7, "x": None, "d": Decimal(0), "s": None, "p": (0,)} | values
    return [member.query.id for member in filed.found((*row.values(), None))]


def test_those_whom_a_tuple_cannot_concern_are_not_found():
    filed = selections("R.A = 1", "R.A = 2", "R.x > 1", "R.x > 3", "3 >= R.x", "R.s = 'a'")
    assert found(filed, A=2) == ["q1~1"]
    assert found(filed, x=2.0) == ["q2~1", "q4~1"]
    assert found(filed, x=4.0, s="a") == ["q5~1", "q2~1", "q3~1"]
    assert found(filed, x=float("nan")) == []


def test_a_group_is_queries_with_one_condition_and_one_algorithm():
    one, other = Member(asked(0, "R.A = 1")), Member(asked(1, "R.A > 2 AND S.D = 3"))
    assert one.group == other.group
    swapped = sql.plan("SELECT R.A FROM R, S WHERE R.A = S.E", STREAMS).plan
    assert Member(JoinQuery("q~1", SUBSCRIBER, 0, "sai", swapped, HOUR_MS)).group != one.group
    assert Member(JoinQuery("q~1", SUBSCRIBER, 0, "dai-t", one.query.plan, HOUR_MS)).group != one.group


def test_nothing_is_left_of_queries_that_were_removed():
    filed = selections("R.A = 1", "R.A = 1", "R.x > 1", "R.x < 1", "")
    for number, condition in enumerate(("R.A = 1", "R.A = 1", "R.x > 1", "R.x < 1", "")):
        filed.remove(Member(asked(number, condition)))
    assert not filed.tells_apart
    assert not filed.filed.anything
