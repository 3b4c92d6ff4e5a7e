"""A plan shown as a tree, as JSON and as a graph."""

from __future__ import annotations

import json

from queries import sql
from queries.explain import as_dot, as_json, as_text
from tests.queries.sql_corpus import CORPUS, streams

KNOWN = streams()
JOIN = "SELECT R.a, S.d FROM R, S [RANGE 5 MINUTES] WHERE R.b = S.e AND S.f > 3 WITH (join = sai)"


def test_the_tree_tells_class_types_options_and_what_is_kept():
    assert as_text(sql.plan(JOIN, KNOWN), KNOWN).splitlines() == [
        "class    windowed: a join of two streams within windows",
        "columns  A int, D int",
        "options  join = sai",
        "kept     R for 1 d",
        "Project R.A, S.D",
        "└── Join R.B = S.E",
        "    ├── Source R",
        "    └── Select S.F > 3",
        "        └── Source S [RANGE 0:05:00]",
    ]


def test_json_says_the_same_for_programs():
    said = json.loads(json.dumps(as_json(sql.plan(JOIN, KNOWN), KNOWN)))
    assert said["class"] == "windowed"
    assert said["options"] == {"join": "sai"}
    assert said["kept_ms"] == {"R": 86_400_000}
    assert said["columns"][0] == {"name": "A", "type": "int", "nullable": False}
    join = said["plan"]["inputs"][0]
    assert (join["operator"], join["predicate"]) == ("Join", "R.B = S.E")
    source = join["inputs"][1]["inputs"][0]
    assert source["stream"] == "S"
    assert source["window"] == {"kind": "time", "size": 300_000_000, "slide": None, "by": []}


def test_the_graph_has_a_box_for_each_operator_and_an_arrow_for_each_input():
    assert as_dot(sql.plan('SELECT lower(gate) AS "a-b" FROM flights WHERE gate = \'x"y\'', KNOWN)).splitlines() == [
        "digraph plan {",
        '  rankdir="BT";',
        '  node [shape="box", fontname="monospace"];',
        '  o1 [label="Project lower(flights.gate) AS a-b"];',
        '  o2 [label="Select flights.gate = \'x\\"y\'"];',
        '  o3 [label="Source flights"];',
        "  o3 -> o2;",
        "  o2 -> o1;",
        "}",
    ]


def test_every_query_can_be_explained_in_every_form():
    for text in CORPUS:
        if not text.startswith(("CREATE", "DROP")):
            query = sql.plan(text, KNOWN)
            assert "Source" in as_text(query, KNOWN)
            assert "->" in as_dot(query)
            json.dumps(as_json(query, KNOWN))
