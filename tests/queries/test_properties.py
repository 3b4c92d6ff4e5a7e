"""The properties of queries: StreamGlobe's four, and that neither aliases nor the language show."""

from __future__ import annotations

import msgspec
import pytest

from queries import sql, wxquery
from queries.canonical import digest
from queries.catalogue import Stream
from queries.plan import Window
from queries.predicates import implies
from queries.properties import InputProperties, Properties, properties
from queries.schema import Schema
from tests.queries.wx_streams import PHOTON
from tests.queries.wx_streams import STREAMS as XML_STREAMS

VELA = "coord/cel/ra >= 120.0 and coord/cel/ra <= 138.0 and coord/cel/dec >= -49.0 and coord/cel/dec <= -40.0"
WHERE = VELA.replace("coord", "$p/coord")
QUERY_1 = f"""<photons>{{ for $p in {PHOTON} where {WHERE}
    return <vela> {{ $p/coord/cel/ra }} {{ $p/coord/cel/dec }} {{ $p/phc }} {{ $p/en }} {{ $p/det_time }} </vela>
    }}</photons>"""
QUERY_2 = f"""<photons>{{ for $p in {PHOTON}
    where $p/en >= 1.3 and $p/coord/cel/ra >= 130.5 and $p/coord/cel/ra <= 135.5
      and $p/coord/cel/dec >= -48.0 and $p/coord/cel/dec <= -45.0
    return <rxj> {{ $p/coord/cel/ra }} {{ $p/coord/cel/dec }} {{ $p/en }} {{ $p/det_time }} </rxj> }}</photons>"""
QUERY_3 = f"""<photons>{{ for $w in {PHOTON}[{VELA}] |det_time diff 20 step 10|
    let $a := avg($w/en) return <avg_en> {{ $a }} </avg_en> }}</photons>"""
QUERY_4 = f"""<photons>{{ for $w in {PHOTON}[{VELA}] |det_time diff 60 step 40|
    let $a := avg($w/en) where $a >= 1.3 return <avg_en> {{ $a }} </avg_en> }}</photons>"""
POSITION = (("coord", "cel", "dec"), ("coord", "cel", "ra"))

STREAMS = {
    stream.name: stream
    for stream in (
        Stream("flights", Schema.parse("num int, dest string, delay int null")),
        Stream("bags", Schema.parse("flight int, area string, at timestamp"), event_time="at"),
    )
}


def of_photons(text: str) -> InputProperties:
    (query,) = properties(wxquery.plan(text, XML_STREAMS).plan)
    (photons,) = query.inputs
    return photons


def of_sql(text: str) -> Properties:
    (query,) = properties(sql.plan(text, STREAMS).plan)
    return query


def test_query_1_selects_and_projects() -> None:
    """StreamGlobe, figure 3: the predicate graph of the selection, and elements that are all returned."""
    photons = of_photons(QUERY_1)
    assert photons.stream == "photons"
    assert str(photons.predicate) == (
        "120 <= coord.cel.ra AND -49 <= coord.cel.dec AND coord.cel.ra <= 138 AND coord.cel.dec <= -40"
    )
    assert photons.referenced == photons.returned == (*POSITION, ("det_time",), ("en",), ("phc",))
    assert (photons.window, photons.grouping) == (None, None)


def test_the_stream_of_query_1_holds_what_query_2_needs() -> None:
    """What MATCHPROPERTIES will ask: its predicate follows, and its elements are among those returned."""
    stream, query = of_photons(QUERY_1), of_photons(QUERY_2)
    assert implies(query.predicate, stream.predicate)
    assert not implies(stream.predicate, query.predicate)
    assert set(query.referenced) <= set(stream.returned)


def test_query_4_aggregates_in_windows_and_filters_the_results() -> None:
    photons = of_photons(QUERY_4)
    assert photons.referenced == (*POSITION, ("det_time",), ("en",)), "the reference of the window is looked at"
    assert photons.returned == ()
    grouping = photons.grouping
    assert grouping is not None
    assert grouping.window == Window("value", 60, 40, ("det_time",))
    assert [str(each) for each in grouping.aggregates] == ["avg(en)"]
    assert (grouping.keys, str(grouping.having)) == ((), "1.3 <= avg(en)")


def test_what_query_4_could_reuse_of_query_3_is_comparable() -> None:
    """What MATCHAGGREGATIONS will ask: same selection, aggregate and reference; sizes and steps that fit."""
    stream, query = of_photons(QUERY_3), of_photons(QUERY_4)
    assert stream.predicate == query.predicate
    assert stream.grouping is not None
    assert query.grouping is not None
    assert stream.grouping.aggregates == query.grouping.aggregates
    old, new = stream.grouping.window, query.grouping.window
    assert old.by == new.by
    assert old.slide is not None
    assert new.slide is not None
    assert (new.size % old.size, old.size % old.slide, new.slide % old.slide) == (0, 0, 0)
    assert implies(query.grouping.having, stream.grouping.having)


def test_a_condition_in_a_path_is_one_in_where() -> None:
    one = f"<r>{{ for $p in {PHOTON}[en >= 1.3] return <i> {{ $p/phc }} </i> }}</r>"
    other = f"<r>{{ for $q in {PHOTON} where $q/en >= 1.30 return <i> {{ $q/phc }} </i> }}</r>"
    assert of_photons(one) == of_photons(other)


def test_the_language_does_not_show() -> None:
    text = "SELECT p.coord.cel.ra, p.en FROM photons AS p WHERE p.en > 1.3 AND p.en > 1.1 AND p.phc = 2"
    (by_sql,) = properties(sql.plan(text, XML_STREAMS).plan)
    by_wxquery = of_photons(
        f"<r>{{ for $p in {PHOTON} where $p/phc = 2 and $p/en > 1.3"
        " return <i> { $p/coord/cel/ra } { $p/en } </i> }</r>"
    )
    assert by_sql.inputs == (by_wxquery,)


def test_a_record_stands_for_all_inside_it() -> None:
    photons = of_photons(
        f"<r>{{ for $p in {PHOTON} where $p/coord/cel/ra > 1.0 return <i> {{ $p/coord }} {{ $p/en }} </i> }}</r>"
    )
    assert photons.returned == photons.referenced == (("coord",), ("en",))


def test_items_of_a_window_are_looked_at_as_far_as_they_are_kept() -> None:
    photons = of_photons(
        f"<r>{{ for $w in {PHOTON} |count 20 step 10|"
        " return <w> { for $i in $w where $i/phc > 1 return <i> { $i/en } </i> } </w> }</r>"
    )
    assert photons.referenced == (("en",), ("phc",))
    assert photons.grouping is not None
    assert [str(each) for each in photons.grouping.aggregates] == ["collect(phc, en)"]


def test_each_input_of_a_join_has_its_own_properties() -> None:
    query = of_sql(
        "SELECT f.dest FROM flights AS f, bags [RANGE 5 MINUTES] AS b"
        " WHERE f.num = b.flight AND f.num > 5 AND b.area = 'A' AND f.num > 3"
    )
    bags, flights = query.inputs
    assert (bags.stream, bags.window, str(bags.predicate)) == ("bags", Window("time", 300_000_000), "area = 'A'")
    assert (bags.referenced, bags.returned) == ((("area",), ("at",), ("flight",)), ())
    assert (flights.stream, flights.window, str(flights.predicate)) == ("flights", None, "6 <= num")
    assert (flights.referenced, flights.returned) == ((("dest",), ("num",)), (("dest",),))
    assert [str(each) for each in query.conditions] == ["s0.flight = s1.num"]


def test_an_aggregate_over_a_join_belongs_to_no_input() -> None:
    query = of_sql(
        "SELECT f.dest, count(*) AS n FROM flights AS f, bags AS b WHERE f.num = b.flight"
        " GROUP BY f.dest, TUMBLE(INTERVAL '5' MINUTE) HAVING count(*) > 2"
    )
    assert [each.grouping for each in query.inputs] == [None, None]
    assert query.grouping is not None
    assert [str(key) for key in query.grouping.keys] == ["s1.dest"]
    assert str(query.grouping.having) == "3 <= count(*)"


def test_a_union_has_the_properties_of_its_branches() -> None:
    plan = sql.plan("SELECT num FROM flights UNION ALL SELECT flight FROM bags WHERE area = 'A'", STREAMS).plan
    assert [each.inputs[0].stream for each in properties(plan)] == ["bags", "flights"]


@pytest.mark.parametrize(
    ("where", "satisfiable"),
    [
        ("f.num = b.flight AND f.num > 5 AND b.flight < 3", False),
        ("f.num = b.flight AND f.num > 5 AND b.flight < 9", True),
        ("f.num = b.flight AND f.num > 5 AND f.num < 6", False),
        ("f.num > 5 AND b.flight < 3", True),
    ],
)
def test_a_query_without_results_is_known_by_its_properties(where: str, satisfiable: bool) -> None:
    assert of_sql(f"SELECT f.num FROM flights AS f, bags AS b WHERE {where}").satisfiable == satisfiable


def test_properties_are_stable_and_can_travel() -> None:
    one = sql.plan("SELECT f.num FROM flights AS f, bags AS b WHERE f.num = b.flight AND f.delay > 5", STREAMS).plan
    other = sql.plan("SELECT x.num FROM bags AS y, flights AS x WHERE 5 < x.delay AND y.flight = x.num", STREAMS).plan
    assert digest(one) == digest(other)
    assert properties(one) == properties(other)
    (query,) = properties(wxquery.plan(QUERY_4, XML_STREAMS).plan)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(query), type=Properties) == query
