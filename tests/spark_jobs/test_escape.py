"""No text of a query reaches a parser of Spark's: it is refused, or it is the value of a constant."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from queries.catalogue import Stream
from queries.errors import QueryError
from queries.expressions import EPOCH
from queries.plan import Operator
from queries.query import parse
from queries.reference import Tuple, evaluate, same_rows
from queries.schema import Schema
from spark_jobs.compile import compiled
from tests.spark_jobs.escapes import CANARY, NAMES, PIECES, PLACES, STATEMENTS
from tests.spark_jobs.frames import source_frames, told
from tests.tidy import ROOT

STREAMS = {"r": Stream("r", Schema.parse("k int, s string"))}
ROWS = {"r": [Tuple(EPOCH, (number, piece), number) for number, piece in enumerate(PIECES)]}


def constants() -> list[str]:
    """Queries with each piece as a constant, quoted as our language wants it."""
    quoted = ["'" + piece.replace("'", "''") + "'" for piece in PIECES]
    return [place.format(text, text) for text in quoted for place in PLACES]


def names() -> list[str]:
    return [place.format(piece.replace('"', '""')) for piece in PIECES for place in NAMES]


def unquoted() -> list[str]:
    """Queries with each piece where a constant should be, as careless programs would put it there."""
    return [place.format(piece, piece) for piece in PIECES for place in PLACES]


def plans(texts: list[str]) -> list[tuple[str, Operator]]:
    """Those that are queries."""
    accepted = []
    for text in texts:
        try:
            accepted.append((text, parse(text, STREAMS).plan))
        except QueryError:
            continue
    return accepted


def test_there_are_enough_payloads() -> None:
    assert len(set(STATEMENTS)) == len(STATEMENTS) >= 60
    assert len(STATEMENTS) + len(constants()) + len(names()) + len(unquoted()) > 400


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_statement_of_spark_is_no_query(text: str) -> None:
    with pytest.raises(QueryError):
        parse(text, STREAMS)


def test_a_piece_in_quotes_is_a_constant() -> None:
    accepted = {text for text, _ in plans(constants())}
    refused = [text for text in constants() if text not in accepted]
    assert all("\u2028" in text for text in refused), "only a separator of lines may not stand in a text"


@pytest.mark.system
def test_constants_reach_spark_as_literals_and_names_not_at_all(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.clientserver import JavaClient

    commands: list[str] = []
    send = JavaClient.send_command

    def noted(self: JavaClient, command: str, *more: Any, **options: Any) -> Any:
        commands.append(command)
        return send(self, command, *more, **options)

    monkeypatch.setattr(JavaClient, "send_command", noted)
    accepted = plans([*constants(), *names(), *unquoted()])
    for text, plan in accepted:
        del commands[:]
        results = compiled(plan, source_frames(spark, plan, {"r": []}))
        told_of = [command for command in commands if CANARY in command]
        assert all(command.split("\n")[2] == "lit" for command in told_of), f"{text}: {told_of}"
        assert CANARY not in str(results.schema), text
    assert len(accepted) > len(constants()) - len(PLACES)
    assert not Path(CANARY).exists()


@pytest.mark.system
def test_constants_mean_themselves(spark: Any) -> None:
    for text, plan in plans(constants()[::5]):
        theirs = told(compiled(plan, source_frames(spark, plan, ROWS)), plan)
        assert same_rows([each.row for each in evaluate(plan, ROWS)], theirs), text
    assert not Path(CANARY).exists()


# The code itself.

PARSERS = {"sql", "expr", "selectExpr", "call_function", "call_udf", "udf", "udtf", "table", "createDataset"} | {
    "createOrReplaceTempView",
    "createTempView",
    "registerJavaFunction",
    "parseExpression",
    "parsePlan",
}
READ_AS_TEXT = {"filter", "where", "having"}  # Given a string, Spark parses it.


def spoken(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where code hands a text to a parser of Spark's."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        is_text = bool(node.args) and isinstance(node.args[0], ast.JoinedStr | ast.Constant)
        if name in PARSERS or (name in READ_AS_TEXT and is_text):
            yield node.lineno, name
        if name in ("cast", "try_cast") and node.args and isinstance(node.args[0], ast.JoinedStr):
            yield node.lineno, name


def test_no_code_of_ours_speaks_to_a_parser_of_spark() -> None:
    files = [*sorted((ROOT / "spark_jobs").rglob("*.py")), ROOT / "queries" / "spark_forms.py"]
    assert len(files) > 10
    found = [f"{path.name}:{line}: {name}" for path in files for line, name in spoken(ast.parse(path.read_text()))]
    assert found == []


@pytest.mark.parametrize(
    "code", ["spark.sql(text)", "sf.expr('a')", "df.selectExpr(x)", "df.filter('a > 1')", "c.cast(f'{kind}')"]
)
def test_code_that_speaks_to_a_parser_is_found(code: str) -> None:
    assert list(spoken(ast.parse(code)))
