"""Plans cut into subgraphs: what runs where, and what travels between."""

from __future__ import annotations

import msgspec

from protocols.execution.flow_rows import decode_rows, encode_rows
from protocols.subgraphs import FlowInput, StreamInput
from queries.plan import Join, Project, Restructure, Select, WindowAggregate, sources, walk
from tests.protocols.execution.parts import (
    JOIN,
    NORTH,
    PROXY,
    PUBLISHERS,
    SELECT,
    SOUTH,
    WINDOWS,
    WORKER,
    at,
    cut_of,
)


def shape(text: str, **where: object) -> list[tuple[int, object, str, int | None]]:
    found = cut_of(text, **where)  # type: ignore[arg-type]
    return [
        (each.number, host, each.engine.name, each.consumer)
        for each, host in zip(found.subgraphs, found.hosts, strict=True)
    ]


def test_what_flows_between_subgraphs_has_one_name_in_all_queries_that_have_it_made():
    def names(text: str, **where: object) -> list[str]:
        return [each.derived for each in cut_of(text, publishers=PUBLISHERS, **where).subgraphs]  # type: ignore[arg-type]

    one, last = names("SELECT number FROM left WHERE part = 1 AND number > 3")
    assert last == "", "its results are a stream of the query's own"
    assert one.startswith("derived-")
    assert names("SELECT x.number AS n FROM left x WHERE 3 < x.number AND x.part = 1") == [one, ""]
    assert names("SELECT number FROM left WHERE part = 2 AND number > 3") != [one, ""]
    joined = names(JOIN, worker=WORKER)
    assert joined == names(JOIN.replace("l.", "a.").replace("left l", "left a"), worker=WORKER)
    assert len(dict.fromkeys(joined)) == len(joined)


def test_a_selection_runs_where_its_stream_is_published_and_hands_on_what_is_needed():
    found = cut_of(SELECT, publishers=PUBLISHERS)
    maker, last = found.subgraphs
    assert found.hosts == (NORTH, PROXY)
    assert maker.inputs == (StreamInput("left", "left", 7, "at", 0),)
    assert [each.name for each in maker.plan.outputs] == ["number", "$time"]
    assert (maker.consumer, maker.consumer_alias) == (0, "left")
    assert last.inputs == (FlowInput("left", 1, maker=NORTH),)


def test_a_stream_published_here_is_not_moved():
    assert shape(SELECT, publishers={"left": PROXY}) == [(0, PROXY, "inline", None)]


def test_a_stream_of_which_everything_is_needed_is_read_as_it_is():
    assert shape("SELECT number, part, at FROM left", publishers=PUBLISHERS) == [(0, PROXY, "inline", None)]


def test_what_has_state_runs_at_the_worker_and_the_proxy_hands_its_results_on():
    assert shape(JOIN, publishers=PUBLISHERS, worker=WORKER) == [
        (2, NORTH, "inline", 1),
        (3, SOUTH, "inline", 1),
        (1, WORKER, "spark", 0),
        (0, PROXY, "inline", None),
    ]


def test_without_state_no_worker_is_needed():
    assert shape(SELECT, worker=WORKER) == [(0, PROXY, "inline", None)]


def test_below_state_selections_stay_in_the_daemon_even_where_spark_is_asked_for():
    """They must hand on rows of before, for the state, which an engine does not tell."""
    assert [each[2] for each in shape(JOIN, publishers=PUBLISHERS, engine="spark")] == ["inline", "inline", "spark"]
    assert [each[2] for each in shape(SELECT, publishers=PUBLISHERS, engine="spark")] == ["spark", "spark"]


def test_rows_are_ranked_before_they_are_selected():
    text = "SELECT count(*) AS n FROM left [ROWS 4 SLIDE 2] WHERE part = 1"
    (last,) = cut_of(text, publishers=PUBLISHERS).subgraphs
    assert isinstance(last.inputs[0], StreamInput)
    assert any(isinstance(each, Select) for each in walk(last.plan))


def test_the_operators_of_the_plan_are_all_there_once():
    for text, kind in ((JOIN, Join), (WINDOWS, WindowAggregate)):
        for worker in (PROXY, WORKER):
            subgraphs = cut_of(text, publishers=PUBLISHERS, worker=worker).subgraphs
            assert sum(isinstance(each, kind) for subgraph in subgraphs for each in walk(subgraph.plan)) == 1
            assert all(isinstance(subgraph.plan, Project) for subgraph in subgraphs)


XML = 'stream("left")/rows/row'
ITEMS = f"for $w in {XML}[part = 1] |count 2| let $n := count($w) return <w> {{ $n }} {{ $w/number }} </w>"


def test_windows_of_several_shapes_are_made_apart_and_put_together_at_the_proxy():
    """An engine makes rows; which of them become which XML is the proxy's to know."""
    text = f"<all> {{ {ITEMS} }} {{ for $r in {XML.replace('left', 'right')}[part = 2] return $r/number }} </all>"
    assert shape(text, publishers=PUBLISHERS, worker=WORKER) == [
        (2, NORTH, "inline", 1),
        (3, SOUTH, "inline", 1),
        (1, WORKER, "spark", 0),
        (0, PROXY, "inline", None),
    ]
    *others, last = cut_of(text, publishers=PUBLISHERS, worker=WORKER).subgraphs
    assert not any(isinstance(op, Restructure) for each in others for op in walk(each.plan))
    assert isinstance(last.plan, Restructure)
    assert [column.type for column in last.plan.input.columns] == ["int", "int", "list", "int"]


def test_a_union_of_windows_can_be_made_elsewhere():
    text = f"{WINDOWS} UNION ALL SELECT number FROM right"
    assert shape(text, worker=WORKER) == [(1, WORKER, "inline", 0), (0, PROXY, "inline", None)]
    assert shape(text, worker=WORKER, engine="spark") == [(1, WORKER, "spark", 0), (0, PROXY, "inline", None)]


def test_lists_travel_from_a_worker_to_the_proxy():
    work, last = cut_of(ITEMS, worker=WORKER).subgraphs
    row = (2, ((7,), (8,)), at(2))
    assert decode_rows(work.plan.columns, encode_rows(work.plan.columns, [row])) == [row]
    (source,) = sources(last.plan)
    assert source.columns[:2] == tuple(
        msgspec.structs.replace(each, path=(name,))
        for each, name in zip(work.plan.columns[:2], ("n", "items"), strict=True)
    )


def test_two_sources_of_one_stream_are_two_inputs():
    text = "SELECT number FROM left WHERE part = 1 UNION ALL SELECT number FROM left WHERE part = 2"
    last = cut_of(text, publishers=PUBLISHERS).subgraphs[-1]
    assert last.inputs == (FlowInput("left", 1, maker=NORTH), FlowInput("left_2", 2, maker=NORTH))
