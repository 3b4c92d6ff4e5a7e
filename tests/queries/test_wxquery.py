"""WXQuery: Definition 2.1 of StreamGlobe, what each of its expressions means, and Queries 1 to 4 as printed."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest

from queries import query, reference, wxquery
from queries.canonical import canonical, digest
from queries.catalogue import Stream
from queries.plan import Operator, Project, Restructure, Select, Source, Union, Window, WindowAggregate, sources, walk
from queries.properties import properties
from queries.schema import Schema
from tests.queries.wx_streams import ALERT, PHOTON, START, STREAMS, alert, photon, results, whole
from tests.queries.wx_texts import Q1, Q3, Q4, VELA


def planned(text: str):
    return wxquery.plan(text, STREAMS).plan


def shape(text: str) -> list[str]:
    return [str(operator) for operator in walk(planned(text))]


def test_a_selection_is_a_select_a_projection_and_a_restructuring():
    vela = (
        "p.coord.cel.ra >= 120.0 AND p.coord.cel.ra <= 138.0 AND p.coord.cel.dec >= -49.0 AND p.coord.cel.dec <= -40.0"
    )
    assert shape(Q1) == [
        "Source photons AS p",
        f"Select {vela}",
        "Project p.coord.cel.ra, p.coord.cel.dec, p.phc, p.en, p.det_time",
        "Restructure into photons/…",
    ]
    rows = [photon("1.3", "7"), photon("2.0", ra="119.9")]
    vela = "<vela><ra>130</ra><dec>-45</dec><phc>1</phc><en>1.3</en><det_time>7</det_time></vela>"
    assert whole(planned(Q1), photons=rows) == f"<photons>{vela}</photons>"


def test_a_window_aggregate_is_filtered_above_the_window():
    assert shape(Q4)[2:] == [
        "WindowAggregate |det_time diff 60 step 40| avg(w.en) AS a",
        "Select a >= 1.3",
        "Project a",
        "Restructure into photons/…",
    ]
    rows = [photon("1.0", "1"), photon("2.0", "39"), photon("0.5", "41"), photon("9", "50", ra="0")]
    # The window [-20, 40) has 1.0 and 2.0; [20, 80) has 2.0 and 0.5, which is not enough.
    assert whole(planned(Q4), photons=rows) == "<photons><avg_en>1.5</avg_en></photons>"
    assert whole(planned(Q3), photons=rows[:1]) == "<photons><avg_en>1</avg_en><avg_en>1</avg_en></photons>"


def test_a_condition_in_the_path_is_the_same_as_in_where():
    """StreamGlobe, section 2: conditions are alike, "whether they appear in a where clause or within a path"."""
    in_path = Q1.replace(f"where {VELA}", f"[{VELA.replace('$p/', '')}]")
    split = Q1.replace("where $p/coord/cel/ra >= 120.0 and", "[coord/cel/ra >= 120.0] where")
    nested = Q1.replace(f"where {VELA}", f"[{VELA.replace('$p/', '').replace(' and ', '][', 1)}]")
    assert planned(in_path) == planned(split) == planned(nested) == planned(Q1)


def test_names_of_variables_and_ways_to_say_it_do_not_change_the_digest():
    one = f"for $p in {PHOTON} where $p/en > 1 return <r> {{ $p/en }} </r>"
    other = f"for $q in {PHOTON}[en > 1] return <r> {{ $q/en }} </r>"
    assert digest(planned(one)) == digest(planned(other)) != digest(planned(one.replace("> 1", "> 2")))
    shown = f"for $w in {PHOTON} |count 2| return <r> {{ $w/en }} </r>"
    looped = f"for $v in {PHOTON} |count 2 step 2| return <r> {{ for $x in $v return $x/en }} </r>"
    assert digest(planned(shown)) == digest(planned(looped)) != digest(planned(shown.replace("count 2", "count 3")))


def test_properties_are_those_of_the_same_query_in_sql():
    in_sql = """SELECT p.coord.cel.ra, p.coord.cel.dec, phc, en, det_time FROM photons AS p
      WHERE p.coord.cel.ra BETWEEN 120.0 AND 138.0 AND p.coord.cel.dec BETWEEN -49.0 AND -40.0"""
    assert properties(planned(Q1)) == properties(query.parse(in_sql, STREAMS).plan)


def test_any_layout_and_comments_are_the_same_query():
    assert planned(" ".join(Q1.split())) == planned(f"(: the remnant :)\n{Q1}") == planned(Q1)


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("|count 20 step 10|", Window("rows", 20, 10)),
        ("|count 20|", Window("rows", 20)),
        ("|det_time diff 20.0 step 0.50|", Window("value", 20, Decimal("0.5"), ("det_time",))),
        ("|coord/det/dx diff 5|", Window("value", 5, None, ("coord", "det", "dx"))),
    ],
)
def test_windows(text: str, window: Window):
    plan = planned(f"for $w in {PHOTON} {text} let $n := count($w) return $n")
    assert [each.window for each in walk(plan) if isinstance(each, WindowAggregate)] == [window]
    assert [source.window for source in sources(plan)] == [None]


def test_a_window_over_the_event_time_has_seconds():
    plan = planned(f"for $w in {ALERT} |at diff 60 step 0.5| let $n := count($w) return $n")
    assert [each.window for each in walk(plan) if isinstance(each, WindowAggregate)] == [
        Window("time", 60_000_000, 500_000)
    ]


def test_windows_of_items_count_what_passed_the_condition():
    text = f"for $w in {PHOTON}[en > 1] |count 2| let $s := sum($w/en) return <s> {{ $s }} </s>"
    rows = [photon(en) for en in ("1.5", "0.5", "2.5", "0.1", "4", "3", "7")]
    assert results(planned(text), photons=rows) == ["<s>4</s>", "<s>7</s>"]


def test_the_contents_of_a_window_can_be_returned():
    text = f"for $w in {PHOTON} |count 2 step 1| return <w> {{ $w/en }} {{ $w/coord/det }} </w>"
    aggregate = next(each for each in walk(planned(text)) if isinstance(each, WindowAggregate))
    assert [field.name for field in aggregate.aggregates[0].fields] == ["coord", "en"]  # Only what is returned is kept.
    det = "<det><dx>1</dx><dy>2</dy></det>"
    assert results(planned(text), photons=[photon("1"), photon("2"), photon("3")]) == [
        f"<w><en>1</en><en>2</en>{det}{det}</w>",
        f"<w><en>2</en><en>3</en>{det}{det}</w>",
    ]


def test_a_whole_item_has_the_name_it_has_in_the_path():
    text = f"for $a in {ALERT} return $a"
    row = alert(1, 3, note="a < b", spot={"x": 5, "y": None}, raw="YWI=")
    assert results(planned(text), alerts=[row]) == [
        "<alert><id>1</id><en>1</en><level>red</level><at>2026-01-01T00:00:03Z</at><seen>true</seen><raw>YWI=</raw>"
        "<weight>1.0</weight><note>a &lt; b</note><spot><x>5</x></spot></alert>"
    ]
    windowed = f"for $w in {ALERT} |count 1| return <w> {{ $w }} </w>"
    assert results(planned(windowed), alerts=[row]) == [f"<w>{results(planned(text), alerts=[row])[0]}</w>"]


def test_a_loop_goes_through_the_items_of_a_window():
    text = f"""for $w in {PHOTON} |count 3|
      let $m := max($w/en)
      return <w> {{ for $x in $w where $x/en < $m - 1 return <low> {{ $x/en }} {{ $m }} </low> }} </w>"""
    rows = [photon("1"), photon("5"), photon("4")]
    assert results(planned(text), photons=rows) == ["<w><low><en>1</en>5</low></w>"]


def test_a_loop_may_stand_beside_the_window_and_its_conditions_are_split():
    text = f"""for $w in {PHOTON} |count 2| let $n := sum($w/en) for $c in $w/coord[det/dx > 0]/cel
      where $n > 3 and $c/ra > 125.0 and $c/ra < $n + 200 return <c> {{ $c/ra }} </c>"""
    operators = shape(text)
    assert operators[2] == "Select n > 3"
    rows = [photon("1", ra="120"), photon("1"), photon("2", ra="126"), photon("2", ra="127")]
    assert results(planned(text), photons=rows) == ["<c><ra>126</ra></c><c><ra>127</ra></c>"]


def test_loops_in_loops_and_lets_inside_them():
    text = f"""for $w in {PHOTON} |count 2| return <w> {{
      for $x in $w for $y in $w let $n := count($w) where $x/en < $y/en
      return <p> {{ $x/en }} {{ $y/en }} {{ $n }} </p> }} </w>"""
    rows = [photon("1"), photon("2")]
    assert results(planned(text), photons=rows) == ["<w><p><en>1</en><en>2</en>2</p></w>"]


def test_one_aggregate_asked_for_twice_is_computed_once():
    text = f"""for $w in {PHOTON} |count 2| let $a := avg($w/en) let $b := avg($w/en) let $a := min($w/en)
      return <w> {{ $a }} {{ $b }} </w>"""
    aggregate = next(each for each in walk(planned(text)) if isinstance(each, WindowAggregate))
    assert [str(each) for each in aggregate.aggregates] == ["avg(w.en) AS a", "min(w.en) AS a_2"]
    assert results(planned(text), photons=[photon("1"), photon("2")]) == ["<w>11.5</w>"]


def test_an_aggregate_may_have_conditions_of_its_own():
    text = f"""for $w in {ALERT} |count 3|
      let $n := count($w/spot[x > 3]) let $m := max($w/spot[x > 3]/y) let $s := count($w/spot)
      return <w> {{ $n }} <m> {{ $m }} </m> {{ $s }} </w>"""
    rows = [alert(1), alert(2, spot={"x": 5, "y": 7}), alert(3, spot={"x": 1, "y": 9})]
    assert results(planned(text), alerts=rows) == ["<w>1<m>7</m>2</w>"]


def test_what_is_missing_is_not_in_the_result():
    text = f"for $a in {ALERT} return <r> {{ $a/note }} {{ $a/spot/x }} {{ $a/spot }} </r>"
    assert results(planned(text), alerts=[alert(1)]) == ["<r></r>"]
    inside = f"for $s in {ALERT}/spot return <s> {{ $s/x }} </s>"
    assert results(planned(inside), alerts=[alert(1), alert(2, spot={"x": 4})]) == ["<s><x>4</x></s>"]


def test_a_path_down_from_a_variable_binds_another():
    text = f"for $p in {PHOTON} for $c in $p/coord[det/dx > 0]/cel where $c/ra > 100 return $c"
    assert shape(text)[1:3] == ["Select p.coord.det.dx > 0 AND p.coord.cel.ra > 100", "Project p.coord.cel"]
    inside = f"for $p in {PHOTON} return <r> {{ for $c in $p/coord/cel[ra > 100] return $c/dec }} </r>"
    assert results(planned(inside), photons=[photon("1"), photon("1", ra="3")]) == [
        "<r><dec>-45</dec></r>",
        "<r></r>",
    ]


def test_a_path_in_the_result_may_have_conditions():
    text = f"for $p in {PHOTON} return <r> {{ $p/coord[cel/ra > 100]/det/dx }} </r>"
    assert results(planned(text), photons=[photon("1"), photon("1", ra="3")]) == ["<r><dx>1</dx></r>", "<r></r>"]


def test_conditionals_choose_and_unknown_is_not_true():
    text = f"""for $a in {ALERT} return
      if $a/spot/x > 3 then <far> {{ $a/id }} </far> else if $a/seen = true() then <near/> else ()"""
    rows = [alert(1, spot={"x": 5}), alert(2), alert(3, seen=False)]
    # What holds nothing is no result.
    assert results(planned(text), alerts=rows) == ["<far><id>1</id></far>", "<near/>"]


def test_conditions_compare_texts_times_and_truth():
    text = f"""for $a in {ALERT} where $a/level = 'r"d' and $a/at >= "2026-01-01T00:00:05Z" and $a/seen = false()
      return $a/id"""
    rows = [alert(1, 5, level='r"d', seen=False), alert(2, 4, level='r"d', seen=False), alert(3, 6, level='r"d')]
    assert results(planned(text), alerts=rows) == ["<id>1</id>"]


def test_several_streams_are_joined():
    text = f"""<pairs> {{ for $p in {PHOTON} for $a in {ALERT}[level = "red" and id = $p/phc]
      where $p/en <= $a/en + 0.5 return <pair> {{ $p/en }} {{ $a/en }} </pair> }} </pairs>"""
    assert shape(text) == [
        "Source photons AS p",
        "Source alerts AS a",
        "Select a.level = 'red'",
        "Join a.id = p.phc AND p.en <= a.en + 0.5",
        "Project p.en, a.en AS en_2",
        "Restructure into pairs/…",
    ]
    assert wxquery.plan(text, STREAMS).query_class == "T1"
    rows = {
        "photons": [photon("1.5", phc=7), photon("1.6", phc=7)],
        "alerts": [alert(7), alert(8), alert(7, level="low")],
    }
    assert whole(planned(text), **rows) == "<pairs><pair><en>1.5</en><en>1</en></pair></pairs>"


def test_a_loop_in_a_loop_with_nothing_between_is_a_join_too():
    joined = f"for $p in {PHOTON} for $a in {ALERT} where $p/en > 1 and $a/id = $p/phc return $a/id"
    nested = f"for $p in {PHOTON} where $p/en > 1 return for $a in {ALERT} where $a/id = $p/phc return $a/id"
    assert planned(nested) == planned(joined)


def test_windows_are_joined_with_the_items_of_another_stream():
    """Definition 2.1, 3: a window may stand behind any `for`. Every window meets every item, as in loops of XQuery."""
    text = f"""for $w in {PHOTON} |count 2| let $m := avg($w/en) for $a in {ALERT}[level = "red"]
      where $m > 1 and $a/en > $m return <hit> {{ $m }} {{ $a/id }} </hit>"""
    assert shape(text) == [
        "Source photons AS w",
        "WindowAggregate [ROWS 2] avg(w.en) AS m",
        "Select w_window.m > 1",
        "Source alerts AS a",
        "Select a.level = 'red'",
        "Join a.en > w_window.m",
        "Project w_window.m, a.id",
        "Restructure into …",
    ]
    assert wxquery.plan(text, STREAMS).query_class == "aggregate"
    photons = [photon(en) for en in ("1", "2", "0.5", "0.5", "4", "5", "9")]
    alerts = [alert(1, en="1.2"), alert(2, en="5"), alert(3, level="low", en="9"), alert(4, en="1.6")]
    assert sorted(results(planned(text), photons=photons, alerts=alerts)) == [
        "<hit>1.5<id>2</id></hit>",
        "<hit>1.5<id>4</id></hit>",
        "<hit>4.5<id>2</id></hit>",
    ]


def test_windows_of_two_streams_are_joined_and_have_aggregates_and_items_each():
    text = f"""for $v in {PHOTON} |det_time diff 10| for $w in {ALERT} |at diff 2|
      let $v_end := max($v/det_time) let $n := count($w) let $m := count($v) where $n >= $m
      return <r> {{ $v_end }} <n> {{ $n }} </n> {{ $v/en }} {{ $w/id }} </r>"""
    photons = [photon("1", "1"), photon("2", "12"), photon("3", "13"), photon("9", "31")]
    alerts = [alert(1, 0), alert(2, 1), alert(3, 2)]
    assert sorted(results(planned(text), photons=photons, alerts=alerts)) == [
        "<r>13<n>2</n><en>2</en><en>3</en><id>1</id><id>2</id></r>",
        "<r>1<n>1</n><en>1</en><id>3</id></r>",
        "<r>1<n>2</n><en>1</en><id>1</id><id>2</id></r>",
        "<r>31<n>1</n><en>9</en><id>3</id></r>",
        "<r>31<n>2</n><en>9</en><id>1</id><id>2</id></r>",
    ]


def test_a_loop_through_a_window_may_stand_before_another_stream():
    beside = f"""for $w in {PHOTON} |count 2| for $x in $w for $a in {ALERT}
      where $a/id = $x/phc and $a/en > 1 return <r> {{ $x/en }} {{ $a/id }} </r>"""
    inside = f"""for $w in {PHOTON} |count 2| for $x in $w return for $a in {ALERT}
      where $a/id = $x/phc and $a/en > 1 return <r> {{ $x/en }} {{ $a/id }} </r>"""
    assert planned(beside) == planned(inside)
    photons = [photon("1", phc=1), photon("2", phc=2), photon("3", phc=2), photon("4", phc=3)]
    rows = {"photons": photons, "alerts": [alert(2, en="5"), alert(9, en="5"), alert(1, en="0.5")]}
    assert results(planned(beside), **rows) == ["<r><en>2</en><id>2</id></r>", "<r><en>3</en><id>2</id></r>"]


def test_the_order_of_windows_and_streams_does_not_change_the_digest():
    one = f"""for $w in {PHOTON} |count 2| let $m := avg($w/en) let $n := min($w/en) for $a in {ALERT}
      where $a/en > $m and $n > 0 return <r> {{ $m }} {{ $a/id }} </r>"""
    other = f"""for $alert in {ALERT} for $x in {PHOTON} |count 2 step 2| let $least := min($x/en)
      let $mean := avg($x/en) where $least > 0 and $mean < $alert/en return <r> {{ $mean }} {{ $alert/id }} </r>"""
    assert digest(planned(one)) == digest(planned(other)) != digest(planned(one.replace("count 2", "count 3")))
    rows = {"photons": [photon("1"), photon("2")], "alerts": [alert(1, en="9"), alert(2)]}
    assert results(canonical(planned(one)), **rows) == results(planned(one), **rows) == ["<r>1.5<id>1</id></r>"]


def test_each_stream_of_a_join_with_windows_has_properties_of_its_own():
    """StreamGlobe, 3.3: a subscription's streams are handled one by one, and combined at the subscriber's peer."""
    text = f"""for $w in {PHOTON}[en > 1] |count 2| let $m := avg($w/en) for $a in {ALERT}[level = "red"]
      where $m > 1 and $a/en > $m return <hit> {{ $m }} {{ $a/id }} </hit>"""
    (whole_query,) = properties(planned(text))
    alerts, photons = sorted(whole_query.inputs, key=lambda each: each.stream)
    assert str(photons.predicate) == "1 < en"
    assert photons.grouping is not None
    assert (str(photons.grouping.aggregates[0]), str(photons.grouping.having)) == ("avg(en)", "1 < avg(s1.en)")
    assert (str(alerts.predicate), alerts.grouping, alerts.returned) == ("level = 'red'", None, (("id",),))
    assert [str(each) for each in whole_query.conditions] == ["avg(s1.en) < s0.en"]
    assert whole_query.satisfiable


def test_a_stream_inside_a_result_is_what_had_come_of_it():
    """Definition 2.1, 2: an element may hold any expression. What comes later is in the results that come later."""
    text = f"""<all> {{ for $p in {PHOTON} where $p/en > 1 return <p> {{ $p/en }} {{
      for $a in {ALERT}[level = "red"] where $a/id = $p/phc and $a/en > 1 return <a> {{ $a/en }} </a>
      }} </p> }} </all>"""
    assert shape(text)[2:] == [
        "Source alerts AS a",
        "Select a.level = 'red' AND a.en > 1",
        "Project a.en, a.id",
        "Nest a_nested where a_nested.id = p.phc",
        "Project p.en, a_nested",
        "Restructure into all/…",
    ]
    assert wxquery.plan(text, STREAMS).query_class == "nested"
    photons = [photon("2", phc=1), photon("3", phc=1), photon("1", phc=1), photon("4", phc=2), photon("5", phc=1)]
    alerts = [alert(9), alert(1, 1, en="1.5"), alert(1, 2, en="0.5"), alert(1, 3, en="3")]
    assert whole(planned(text), photons=photons, alerts=alerts) == (
        "<all><p><en>2</en></p><p><en>3</en><a><en>1.5</en></a></p><p><en>4</en></p>"
        "<p><en>5</en><a><en>1.5</en></a><a><en>3</en></a></p></all>"
    )


def test_what_stands_inside_a_result_may_be_a_join_windows_or_a_path_alone():
    photons = [photon("1"), photon("2"), photon("3")]
    alerts = [alert(1, 0), alert(2, 1), alert(1, 2)]

    def found(text: str) -> list[str]:
        return results(planned(text), photons=photons, alerts=alerts)

    path = f"for $p in {PHOTON} return <p> {{ {ALERT}[id = 1]/id }} </p>"
    assert found(path) == ["<p><id>1</id></p>", "<p><id>1</id></p>", "<p><id>1</id><id>1</id></p>"]
    windows = f"""for $p in {PHOTON} return <p> {{ for $w in {ALERT} |count 2 step 1| let $s := sum($w/id)
      where $s > 2 return <s> {{ $s }} </s> }} </p>"""
    assert found(windows) == ["<p></p>", "<p><s>3</s></p>", "<p><s>3</s><s>3</s></p>"]
    joined = f"""for $w in {PHOTON} |count 3| let $m := max($w/en) return <w> {{ $m }} {{
      for $a in {ALERT} for $b in {ALERT} where $a/id < $b/id and $a/en < $m return <ab> {{ $b/id }} </ab> }} </w>"""
    assert found(joined) == ["<w>3<ab><id>2</id></ab><ab><id>2</id></ab></w>"]
    looped = f"""for $w in {PHOTON} |count 3| return <w> {{ for $x in $w where $x/en > 1 return <x> {{
      for $a in {ALERT} where $a/id < $x/en and $a/id >= $x/phc return $a/id }} </x> }} </w>"""
    assert found(looped) == ["<w><x><id>1</id><id>1</id></x><x><id>1</id><id>2</id><id>1</id></x></w>"]
    chosen = f"for $p in {PHOTON} return if $p/en >= 3 then {ALERT}/id else ()"
    assert found(chosen) == ["<id>1</id><id>2</id><id>1</id>"]


def test_a_result_with_a_stream_inside_waits_until_all_of_it_is_there():
    """Alerts go by event time: one that comes late is in the list if the watermark had not gone by."""
    plan = planned(f"for $p in {PHOTON} return <p> {{ $p/en }} {{ {ALERT}/id }} </p>")
    photons = [reference.Tuple(START + timedelta(seconds=5), photon("1"), "p")]
    at_6 = reference.Tuple(START + timedelta(seconds=8), alert(2, 6), "a6")
    early = reference.Tuple(START + timedelta(seconds=7), alert(1, 4), "a4")
    late = reference.Tuple(START + timedelta(seconds=9), alert(3, 3), "a3")

    def told(*alerts: reference.Tuple, final: bool = False) -> list[str]:
        streams = {"photons": photons, "alerts": list(alerts)}
        return [each.row[0] for each in reference.evaluate(plan, streams, final=final)]

    assert told() == told(early) == []
    assert told(early, at_6) == told(early, at_6, late) == told(early, at_6, late, final=True)
    assert told(early, at_6) == ["<p><en>1</en><id>1</id></p>"]


def test_names_of_variables_in_a_nested_query_do_not_change_the_digest():
    one = f"for $p in {PHOTON} return <p> {{ for $a in {ALERT} where $a/id = $p/phc return $a/en }} </p>"
    other = f"for $x in {PHOTON} return <p> {{ for $y in {ALERT}[id = $x/phc] return $y/en }} </p>"
    assert digest(planned(one)) == digest(planned(other)) != digest(planned(one.replace("a/id =", "a/id >")))
    rows = {"photons": [photon("1")], "alerts": [alert(1), alert(1)]}
    assert results(canonical(planned(one)), **rows) == results(planned(one), **rows) == ["<p><en>1</en></p>"]
    (nested,) = properties(planned(one))
    assert [(each.stream, each.returned, each.referenced) for each in nested.inputs] == [
        ("photons", (), (("phc",),)),
        ("alerts", (), (("en",), ("id",))),
    ]
    assert [str(each) for each in nested.conditions] == ["s0.phc = s1.id"]


def test_a_stream_may_be_joined_with_itself():
    text = f"for $p in {PHOTON} for $p in {PHOTON} where $p/en > 3 return $p/phc"
    plan = planned(text)
    assert [source.alias for source in sources(plan)] == ["p", "p_2"]
    assert shape(text)[2] == "Select p_2.en > 3"


def test_a_sequence_over_streams_is_a_union():
    text = f"""<all>
      {{ ( for $p in {PHOTON} where $p/en > 1 return $p/en, for $p in {ALERT} return $p/id ) }}
      {{ {PHOTON}[phc = 9]/phc }} </all>"""
    plan = planned(text)
    assert isinstance(plan, Union)
    assert all(isinstance(each, Restructure) and each.envelope == ("all",) for each in plan.branches)
    assert [source.alias for source in sources(plan)] == ["p", "p_2", "phc"]
    rows = {"photons": [photon("1.5", phc=9)], "alerts": [alert(4)]}
    assert sorted(results(plan, **rows)) == ["<en>1.5</en>", "<id>4</id>", "<phc>9</phc>"]


def test_a_path_alone_is_short_for_a_loop():
    assert results(planned(f"{PHOTON}[en > 1]/en"), photons=[photon("1"), photon("2")]) == ["<en>2</en>"]


def test_a_result_without_values_still_has_a_row():
    assert results(planned(f"for $p in {PHOTON} where $p/en > 1 return <hit/>"), photons=[photon("2")]) == ["<hit/>"]
    empty = f"for $w in {PHOTON} |count 2| return <full/>"
    assert results(planned(empty), photons=[photon("2"), photon("3")]) == ["<full/>"]


def test_words_of_the_language_may_be_names_of_elements():
    streams = {"s": Stream("s", Schema.parse("count int, return int, step int"))}
    text = """for $for in stream("s")/in/for[count > 1 and return < 5] |count diff 10 step 5|
      let $let := sum($for/step) return <then> { $let } </then>"""
    operators = list(walk(wxquery.plan(text, streams).plan))
    assert isinstance(operators[1], Select)
    assert isinstance(operators[2], WindowAggregate)
    assert operators[2].window == Window("value", 10, 5, ("count",))


def test_names_may_differ_in_case_alone():
    text = 'for $p in stream("PHOTONS")/photons/photon where $p/EN > 1 return $p/Coord/CEL/ra'
    assert results(planned(text), photons=[photon("2")]) == ["<ra>130</ra>"]


def test_the_language_is_told_by_the_text():
    for text in (Q1, f"for $p in {PHOTON} return $p", f"({PHOTON}, {ALERT})", f"(: all :) {PHOTON}", PHOTON):
        assert query.parse(text, STREAMS).language == "wxquery"


def test_plans_travel():
    for text in (
        Q1,
        Q4,
        f"for $w in {PHOTON} |det_time diff 0.5| return <w> {{ for $x in $w where $x/en > 1 return $x }} </w>",
    ):
        plan = planned(text)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Operator) == plan


def test_only_what_the_result_needs_leaves_the_network():
    project = next(each for each in walk(planned(Q1)) if isinstance(each, Project))
    assert not any(isinstance(each, Source) for each in project.inputs)
    assert [column.path for column in project.columns] == [("ra",), ("dec",), ("phc",), ("en",), ("det_time",)]
