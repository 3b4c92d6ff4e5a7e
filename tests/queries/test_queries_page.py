"""docs/queries.md is true: its queries give the results it shows, its table has every function, its examples hold.

`pytest --rewrite` writes the results anew; read the difference.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pytest

from queries import query, sql_streams
from queries.catalogue import Stream
from queries.expressions import Constant
from queries.functions import FUNCTIONS
from queries.plan import AGGREGATES
from queries.reference import Tuple, evaluate

PAGE = Path(__file__).parents[2] / "docs" / "queries.md"
TEXT = PAGE.read_text()
DAY = datetime(2026, 1, 31, tzinfo=UTC)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
QUERIES = [(kind, text) for kind, text in BLOCKS if kind in ("sql", "xquery") and "CREATE STREAM" not in text]
EXAMPLES = [
    (expression.replace("\\|", "|"), value)
    for expression, value in re.findall(r"`([^`]+)` is `([^`]+)` \|$", TEXT, re.MULTILINE)
]


def streams() -> dict[str, Stream]:
    made = sql_streams.read_all(next(text for _, text in BLOCKS if "CREATE STREAM" in text))
    return {each.name: each.stream for each in made if isinstance(each, sql_streams.CreateStream)}


def tuples() -> dict[str, list[Tuple]]:
    """Lines of `time stream [values]`."""
    known = streams()
    lists: dict[str, list[Tuple]] = {name: [] for name in known}
    for line in next(text for kind, text in BLOCKS if kind == "tuples").splitlines():
        published_at, name, values = line.split(maxsplit=2)
        published = datetime.combine(DAY, time.fromisoformat(published_at), UTC)
        lists[name].append(Tuple(published, known[name].schema.row(json.loads(values)), len(lists[name])))
    return lists


def results(text: str) -> str:
    found = evaluate(query.parse(text, streams()).plan, tuples())
    return "".join(f"{each.time:%H:%M:%S}  {', '.join(map(_shown, each.row))}\n" for each in found)


def _shown(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


@pytest.mark.parametrize("text", [text for _, text in QUERIES], ids=lambda text: " ".join(text.split())[:50])
def test_a_query_gives_the_results_below_it(text, rewrite):
    given, before = results(text), f"{text}```\n\n```results\n"
    if rewrite:
        head, tail = PAGE.read_text().split(before, 1)
        PAGE.write_text(head + before + given + tail[tail.index("```") :])
    assert before + given + "```" in PAGE.read_text()


@pytest.mark.parametrize(("expression", "value"), EXAMPLES, ids=lambda each: each[:40])
def test_an_example_of_a_function_holds(expression, value):
    plan = query.parse(f"SELECT {expression} AS x FROM flights", streams()).plan
    assert str(Constant.of(evaluate(plan, tuples())[0].row[0])) == value


def test_every_function_is_on_the_page_with_an_example():
    written = {"negate": "-a", "is_null": "IS NULL", "in": "IN (", "case": "CASE", "||": "\\|\\|"}
    table = TEXT.split("### Operators and functions")[1].split("\n## ")[0]
    for name in FUNCTIONS:
        sought = written.get(name, name if not name.isidentifier() else f"{name}(")
        assert sought in table or name.upper() in table, name
    assert len(EXAMPLES) == table.count("\n| ") - 1  # The heading has none.
    assert all(f"`{name}(" in TEXT for name in AGGREGATES)
