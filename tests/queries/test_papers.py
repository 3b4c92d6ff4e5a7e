"""Every query that the five papers print: its text, its plan and its results on a few tuples, in golden files.

A folder of tests/queries/papers has streams (streams.sql), tuples (tuples.txt) and one file for each query. `pytest
--rewrite` writes the plans and results anew; read the difference. SAND prints trees of operators and no query.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queries import explain, restructure
from queries.plan import Restructure
from queries.reference import Result, Tuple, evaluate, same_rows
from tests.queries.papers import FILES, PAPERS, planned, read, tuples_of


def results(path: Path) -> list[Result]:
    return evaluate(planned(path).plan, tuples_of(path.parent))


def shown(plan: Any, found: list[Result]) -> str:
    """A line for each result: when it is due, its values, its window, its tuples; then the document, if it is XML."""
    lines = []
    for each in found:
        values = ", ".join(json.dumps(value, default=str, ensure_ascii=False) for value in each.row)
        window = f"  [{each.window[0]}, {each.window[1]})" if each.window else ""
        made_of = " ".join(f"{alias}={number}" for alias, number in each.sources)
        lines.append(f"{each.time:%H:%M:%S}  {values}{window}  {made_of}")
    if isinstance(plan, Restructure):
        lines.append(restructure.document(plan.envelope, [each.row[0] for each in found]))
    return "\n".join(lines)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_query_of_the_papers_has_its_plan_and_its_results(path: Path, rewrite: bool) -> None:
    heading, sections = read(path)
    parsed = planned(path)
    made = sections | {"plan": explain.as_text(parsed), "results": shown(parsed.plan, results(path))}
    if rewrite:
        path.write_text(heading + "".join(f"---- {name}\n{text}\n" for name, text in made.items()))
    assert read(path)[1] == {name: text.rstrip("\n") for name, text in made.items()}


def test_iflow_rewriting_a_query_over_a_view_keeps_its_results():
    """IFLOW, section 3.3: Q1 becomes Q1' over the derived stream V_local and WEATHER; both give the same."""
    folder = PAPERS / "iflow"
    tuples = tuples_of(folder)
    view = [
        Tuple(each.time, ((each.row[0], each.row[2]), (each.row[1],)), number)
        for number, each in enumerate(results(folder / "3.3-v-local.txt"))
    ]
    rewritten = evaluate(planned(folder / "3.3-q1-rewritten.txt").plan, tuples | {"V_LOCAL": view})
    original = results(folder / "2.1-q1.txt")
    assert same_rows([each.row for each in rewritten], [each.row for each in original])
    assert len(original) > 1


def test_cq_dht_a_rewritten_query_gives_what_its_trigger_would_have_given():
    """CQ-DHT, section 4: replacing the attributes of S by the values of S(3, 4, 7) leaves a query over R."""
    folder = PAPERS / "cq-dht-r-s"
    by_trigger = [each.row for each in results(folder / "4-sai.txt") if ("S", 1) in each.sources]
    assert by_trigger == [each.row for each in results(folder / "4-sai-rewritten.txt")] != []
    by_trigger = [each.row for each in results(folder / "6-t2.txt") if ("R", 1) in each.sources]
    assert by_trigger == [each.row for each in results(folder / "6-t2-rewritten.txt")] != []


def test_streamglobe_the_second_query_is_contained_in_the_first():
    """StreamGlobe, section 1: each photon of Query 2 is one of Query 1."""
    folder = PAPERS / "streamglobe"
    first = [each.sources for each in results(folder / "1-q1.txt")]
    second = [each.sources for each in results(folder / "1-q2.txt")]
    assert second != []
    assert all(each in first for each in second)
