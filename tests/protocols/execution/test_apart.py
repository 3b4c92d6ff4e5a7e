"""Joins of several streams taken apart: who runs what, and how rows of before stay what they were from join to join."""

from __future__ import annotations

from random import Random

import pytest

from overlay.sim.engine import ReferenceEngine
from protocols.execution.apart import inner_joins
from protocols.execution.cut import Cut
from protocols.subgraphs import FlowInput, Progress, Reach
from queries.plan import Join, walk
from queries.query import parse
from queries.schema import Row
from tests.protocols.execution.attempts import (
    FOUR,
    ORIGINS,
    SHORT,
    STREAMS,
    THREE,
    TWICE,
    WINDOWED,
    Runs,
    apart,
    attempts,
)
from tests.protocols.execution.parts import NORTH, PROXY, SOUTH, WORKER, at


def shape(found: Cut) -> list[tuple[int, object, str, int | None]]:
    return [
        (each.number, host, each.engine.name, each.consumer)
        for each, host in zip(found.subgraphs, found.hosts, strict=True)
    ]


def test_each_join_below_another_can_run_apart_unless_it_has_no_condition_or_windows_that_slide():
    def found(text: str) -> list[tuple[str, ...]]:
        return list(inner_joins(parse(text, STREAMS).plan))

    assert found(THREE) == [("l", "r")]
    assert found(FOUR) == [("l", "r"), ("l", "r", "f")]
    assert found("SELECT l.number FROM left l, right r WHERE l.number = r.number") == []
    assert found("SELECT l.number FROM left l, right r, far f WHERE l.number = f.number") == []
    assert found(THREE.replace("left l", "left l [RANGE 1 SECOND]")) == [("l", "r")]
    assert found(THREE.replace("left l", "left l [RANGE 2 SECONDS SLIDE 1 SECOND]")) == []
    assert found(THREE.replace("left l", "left l [ROWS 3]")) == []


def test_an_inner_join_runs_at_its_own_peer_and_its_sources_are_narrowed_for_it():
    found = apart(THREE, {("l", "r"): NORTH}, l=SOUTH, f=SOUTH)
    assert shape(found) == [
        (3, SOUTH, "inline", 2),
        (2, NORTH, "spark", 1),
        (4, SOUTH, "inline", 1),
        (1, WORKER, "spark", 0),
        (0, PROXY, "inline", None),
    ]
    parts = {each.number: each for each in found.subgraphs}
    assert [each.tells_old for each in found.subgraphs] == [True, True, False, False, False]
    assert parts[1].inputs == (FlowInput("l+r", 2, is_mixed=True, maker=NORTH), FlowInput("f", 4, maker=SOUTH))
    assert [each.path[0] for each in parts[2].plan.columns] == ["l-number", "r-is_new", "is_new", "$time"]


def test_joins_of_one_peer_are_one_run():
    whole = shape(apart(FOUR, {}))
    assert shape(apart(FOUR, {("l", "r"): WORKER, ("l", "r", "f"): WORKER})) == whole
    both = apart(FOUR, {("l", "r"): NORTH, ("l", "r", "f"): NORTH})
    assert [sum(isinstance(op, Join) for op in walk(each.plan)) for each in both.subgraphs] == [2, 1, 0]
    assert [sum(isinstance(op, Join) for op in walk(each.plan)) for each in apart(FOUR, {}).subgraphs] == [3, 0]


def test_at_the_subscribers_peer_the_last_join_needs_no_relay():
    found = apart(THREE, {("l", "r"): NORTH}, worker=PROXY)
    assert shape(found) == [(1, NORTH, "spark", 0), (0, PROXY, "spark", None)]


def test_what_inner_joins_make_has_one_name_whoever_makes_it():
    one = apart(FOUR, {("l", "r"): NORTH}).subgraphs[0].derived
    assert one.startswith("derived-")
    assert apart(FOUR, {("l", "r"): SOUTH, ("l", "r", "f"): NORTH}, l=WORKER).subgraphs[1].derived == one
    assert apart(THREE, {("l", "r"): NORTH}).subgraphs[0].derived != one


@pytest.mark.parametrize("text", [THREE, FOUR, TWICE, WINDOWED, SHORT])
@pytest.mark.parametrize("seed", range(12))
def test_attempt_after_attempt_every_result_is_told_once(text: str, seed: int):
    told, unread = attempts(text, Random(f"{seed} {text}"), ReferenceEngine())
    if text is SHORT:
        assert unread, "of rows whose windows are over"
    assert told[0] == told[1], f"seed {seed}"


def test_until_an_inner_join_has_its_rows_back_it_is_not_said_what_results_cover():
    resume = Progress(tuple(Reach(alias, ORIGINS[name], 1) for alias, name in (("l", "left"), ("r", "right"))))
    runs = Runs(apart(THREE, {("l", "r"): NORTH}), resume, ReferenceEngine())
    rows: list[Row] = [(1, 1, at(1))]
    runs.publish("far", 0, rows)
    runs.publish("left", 0, rows)
    assert (runs.results, runs.said) == ([], resume)
    runs.publish("right", 0, rows)
    assert runs.results == [(1, 1, at(1))], "an old pair meets a new row"
    assert [(each.alias, each.next) for each in runs.said.covers] == [("l", 1), ("r", 1), ("f", 1)]
