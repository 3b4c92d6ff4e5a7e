"""Plans that another peer may have sent: those of the front ends are sound, and what is changed in them is found."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from queries.expressions import Call, Column, Constant
from queries.functions import call
from queries.plan import Aggregate, Join, Operator, Project, Restructure, Select, Source, Union, Window, WindowAggregate
from queries.query import parse
from queries.schema import Schema
from queries.sound import DEPTH_MAX, UnsoundPlan, check_plan
from tests.queries import sql_corpus
from tests.queries.papers import FILES, planned

SOURCE = Source(
    "flights", "f", Schema.parse("num int, gate string null, at timestamp, place record(lat float)"), None, "at"
)
OTHER = msgspec.structs.replace(SOURCE, alias="g")
NUM, GATE = Column("f", ("num",), "int"), Column("f", ("gate",), "string", True)
LATE = Window("time", 1_000_000)


def changed(thing: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(thing, **fields)


def counted(**fields: Any) -> WindowAggregate:
    total = Aggregate("n", "count", None, "int")
    return changed(WindowAggregate(SOURCE, LATE, (), (total,)), **fields)


def nested(depth: int) -> Operator:
    plan: Operator = SOURCE
    for _ in range(depth):
        plan = Select(plan, Constant.of(True))
    return plan


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_plans_of_the_papers_are_sound(path: Any) -> None:
    check_plan(planned(path).plan)


@pytest.mark.parametrize(
    "text",
    [
        sql_corpus.IFLOW_Q1,
        "SELECT place.lat FROM sales WHERE place.lon IS NULL",
        "SELECT dest, max(delay) AS d FROM flights [RANGE 1 HOUR SLIDE 5 MINUTES] GROUP BY dest HAVING count(*) > 2",
        "SELECT A FROM R UNION ALL SELECT CAST(B + 1 AS INT) FROM S WHERE C LIKE 'a%' OR D IN (1, 2)".replace(
            "C LIKE 'a%' OR ", ""
        ),
    ],
)
def test_plans_of_sql_are_sound(text: str) -> None:
    check_plan(parse(text, sql_corpus.streams()).plan)


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (changed(SOURCE, event_time="gate"), "no timestamp"),
        (changed(SOURCE, event_time="gone"), "no timestamp"),
        (changed(SOURCE, lateness_ms=-1), "a lateness of -1"),
        (changed(SOURCE, window=Window("time", 0)), "a window of 0"),
        (changed(SOURCE, window=Window("rows", 1, -5)), "a window of -5"),
        (changed(SOURCE, window=Window("value", 1, None, ("gate",))), "a window over a string"),
        (changed(SOURCE, window=Window("value", 1)), "not there"),
        (Select(SOURCE, GATE), "not a bool"),
        (Select(SOURCE, call("=", Column("f", ("gone",), "int"), NUM)), "there is no column f.gone"),
        (Select(SOURCE, call("=", Column("f", ("gate",), "int"), NUM)), "is a string, not a int"),
        (Select(SOURCE, call("=", changed(GATE, nullable=False), GATE)), "may be null"),
        (Select(SOURCE, call("=", Column("f", ("place", "lon"), "float"), NUM)), "there is no column"),
        (Select(SOURCE, call("=", Column("f", ("num", "lon"), "float"), NUM)), "looks into a int"),
        (Select(SOURCE, Call("=", (), "bool")), "takes 2 arguments, not 0"),
        (Select(SOURCE, Call("no_such", (), "bool")), "unknown function"),
        (Select(SOURCE, Call("+", (NUM, NUM), "bool")), "another type than it says"),
        (Select(SOURCE, Call("=", (NUM, Constant.of(None)), "bool", False)), "another type than it says"),
        (Select(SOURCE, Call("cast", (NUM,), "interval")), "cannot be cast"),
        (Select(SOURCE, Call("cast", (), "bool")), "a cast of several values"),
        (Select(SOURCE, Constant("yes", "bool")), "a constant that is no bool"),
        (Select(SOURCE, call("=", NUM, Constant("NaN", "decimal"))), "a constant that is no decimal"),
        (Select(SOURCE, call("=", Column("f", ("at",), "timestamp"), Constant(1 << 70, "timestamp"))), "too large"),
        (Project(SOURCE, ()), "without columns"),
        (Join(SOURCE, SOURCE), "two sources have one alias"),
        (Join(SOURCE, OTHER, NUM), "not a bool"),
        (Union(()), "without branches"),
        (Union((SOURCE, Select(counted(), Constant.of(True)))), "number of columns"),
        (counted(window=Window("time", -1)), "a window of -1"),
        (counted(aggregates=(Aggregate("n", "sum", GATE, "int"),)), "no value for a string"),
        (counted(aggregates=(Aggregate("n", "sum", None, "int"),)), "needs what to compute"),
        (counted(aggregates=(Aggregate("n", "count", None, "string"),)), "another type than it says"),
        (Select(Restructure(SOURCE, ()), Constant.of(True)), "rows are made of XML"),
        (nested(DEPTH_MAX + 5), "nested more than"),
    ],
)
def test_what_no_front_end_makes_is_refused(plan: Operator, problem: str) -> None:
    with pytest.raises(UnsoundPlan, match=problem):
        check_plan(plan)
