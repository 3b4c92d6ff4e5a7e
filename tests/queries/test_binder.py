"""Names, places of conditions and classes: what both languages rely on."""

from __future__ import annotations

import pytest

from queries import sql
from queries.binder import NOW, Name, Scope, classify, joined, stream_of, timed, timed_conjunct
from queries.catalogue import Stream, named
from queries.errors import QueryError, Span
from queries.expressions import TIME, Call, Column, Constant
from queries.functions import call
from queries.plan import Join, Project, Select, Union, Window
from queries.schema import Schema
from tests.queries.sql_corpus import streams

KNOWN = streams()
R = Stream("R", Schema.parse("a int, b string null, c record(d float null, e int)"))
S = Stream("S", Schema.parse("a int, f string"))
TEXT = "x" * 40


def names(text: str) -> list[Name]:
    return [Name(word, Span(0, len(word))) for word in text.split(".")]


def column(text: str) -> Column:
    return Scope(TEXT, {"r": R.source("r"), "s": S.source("s")}).column(names(text))


def test_a_name_is_found_in_its_own_spelling_first():
    assert named("A", ["a", "A"]) == "A"
    assert named("a", ["A"]) == "A"
    assert named("a", ["A", "Á"]) == "A"
    assert named("aB", ["ab", "AB"]) is None


def test_names_lead_to_columns_with_type_and_nullability():
    assert column("r.a") == Column("r", ("a",), "int")
    assert column("B") == Column("r", ("b",), "string", nullable=True)
    assert column("c.d") == Column("r", ("c", "d"), "float", nullable=True)
    assert column("R.C.E") == Column("r", ("c", "e"), "int")
    assert column("c").fields == R.schema.fields[2].fields


@pytest.mark.parametrize(
    ("written", "problem", "hint"),
    [
        ("a", '"a" could be a column of r or s', "write r.a or s.a"),
        ("g", 'unknown column "g"', "there is a, b, c, f"),
        ("r.f", '"r" has no column "f"', "there is a, b, c"),
        ("c.x", '"r.c" has no column "x"', "there is d, e"),
        ("f.x", '"s.f" is not a record, so it has no "x"', ""),
        ("t.a", 'nothing in FROM is called "t"', "there is r, s, a, b, c, f"),
        ("r", '"r" is a stream, not a column', "for example r.*"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_there_is(written: str, problem: str, hint: str):
    with pytest.raises(QueryError) as refused:
        column(written)
    assert (refused.value.problem, refused.value.hint) == (problem, hint)


def test_an_unknown_stream_names_its_nearest():
    assert stream_of(Name("FLIGHTS", Span(0, 7)), KNOWN, TEXT).name == "flights"
    with pytest.raises(QueryError, match='did you mean "weather"'):
        stream_of(Name("wether", Span(0, 6)), KNOWN, TEXT)


def test_the_plan_may_call_a_source_otherwise_than_the_query():
    scope = Scope(TEXT, {"r": R.source("r_2")})
    assert scope.column(names("r.a")) == Column("r_2", ("a",), "int")
    assert scope.all_of(None)[0].input == "r_2"


def test_each_condition_is_as_low_as_it_can_be():
    r, s = R.source("r"), S.source("s")
    own = call("=", column("r.a"), Constant(1, "int"))
    both = call("=", column("r.b"), column("s.f"))
    constant = call("=", Constant(1, "int"), Constant(1, "int"))
    assert joined([r, s], [both, own]) == Join(Select(r, own), s, both)
    assert joined([r], [own, constant]) == Select(r, Call("and", (own, constant), "bool"))
    assert joined([r, s], []) == Join(r, s)


def test_in_a_join_nothing_is_selected_below_a_window_of_rows():
    r, s = R.source("r", Window("rows", 5)), S.source("s")
    own = call("=", column("r.a"), Constant(1, "int"))
    assert joined([r, s], [own]) == Join(r, s, own)
    assert joined([r], [own]) == Select(r, own)


def test_now_is_the_latest_time_of_the_rows_at_hand():
    r_time, s_time = Column("r", (TIME,), "timestamp"), Column("s", (TIME,), "timestamp")
    assert timed(NOW, ["r"]) == r_time
    assert timed(NOW, ["r", "s"]) == call("greatest", r_time, s_time)
    at = Column("r", ("at",), "timestamp")
    assert timed_conjunct(call("<", at, NOW), ["r", "s"]) == call("<", at, r_time)
    assert timed_conjunct(call("<", Constant(0, "timestamp"), NOW), ["s"]) == call(
        "<", Constant(0, "timestamp"), s_time
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT a FROM R WHERE b = 3", "select"),
        ("SELECT R.a FROM R, S WHERE R.b = S.e", "T1"),
        ("SELECT R.a FROM R, S WHERE S.e = R.b AND R.a > 3 AND R.c < S.f", "T1"),
        ("SELECT R.a FROM R, S WHERE R.b + 1 = S.e", "T1"),
        ("SELECT R.a FROM R, S WHERE 3 - R.b = -S.e", "T1"),
        ("SELECT R.a FROM R, S WHERE R.b * 2 = S.e", "T2"),
        ("SELECT R.a FROM R, S WHERE R.b + R.b = S.e", "T2"),
        ("SELECT R.a FROM R, S WHERE R.b + 1.5 = S.e", "T2"),
        ("SELECT R.a FROM R, S WHERE 4 * R.b + R.c + 8 = 5 * S.e + S.d * S.f", "T2"),
        ("SELECT R.a FROM R, S WHERE R.b + 1 = S.e AND R.a = S.d", "T1"),
        ("SELECT R.a FROM R, S WHERE R.b < S.e", "theta"),
        ("SELECT R.a FROM R, S WHERE R.b = 1 AND S.e = 1", "theta"),
        ("SELECT R.a FROM R, S WHERE R.b + S.d = S.e", "theta"),
        ("SELECT R.a FROM R, S WHERE R.b = S.e OR R.a = S.d", "theta"),
        ("SELECT R.a FROM R [RANGE 1 HOUR], S WHERE R.b = S.e", "windowed"),
        ("SELECT R.a FROM R, S, R AS T WHERE R.b = S.e AND S.e = T.b", "multi-way"),
        ("SELECT count(*) FROM R [RANGE 1 HOUR]", "aggregate"),
        ("SELECT DISTINCT a FROM R [ROWS 10]", "aggregate"),
        ("SELECT a FROM R UNION ALL SELECT R.a FROM R, S WHERE R.b = S.e", "T1"),
    ],
)
def test_classes(text: str, expected: str):
    assert sql.plan(text, KNOWN).query_class == expected


def test_the_class_of_a_union_is_that_of_its_hardest_branch():
    one = Project(R.source("r"), ())
    two = Project(joined([R.source("r2"), S.source("s2")], []), ())
    assert classify(Union((one, one))) == "select"
    assert classify(Union((one, two))) == "theta"
