"""`peer explain`, and streams created by statement, without a network."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from peerd.cli.explain import explain
from peerd.cli.streams import create
from peerd.errors import Exit, PeerError

FLIGHTS = "flights: num int, gate string, at timestamp"


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(explain, list(arguments), input=given, catch_exceptions=True)


def refused(result: Result) -> PeerError:
    assert isinstance(result.exception, PeerError)
    assert result.exception.exit_code == Exit.MISUSE
    return result.exception


def test_a_query_is_explained_as_a_tree():
    result = run("SELECT a.gate FROM flights a, flights b WHERE a.num = b.num", "--stream", FLIGHTS)
    assert result.output.splitlines() == [
        "class    T1: a join of two streams by one column of each; the DHT can index it",
        "columns  gate string",
        "kept     flights for 1 d",
        "Project a.gate",
        "└── Join a.num = b.num",
        "    ├── Source flights AS a",
        "    └── Source flights AS b",
        "index    at flights.num and flights.num; messages per tuple to evaluators: "
        "sai 1 (auto), dai-q 2, dai-t 2, dai-v 1",
    ]


def test_streams_come_from_a_file_and_the_query_from_stdin(tmp_path: Path):
    path = tmp_path / "streams.sql"
    path.write_text(
        "CREATE STREAM flights (num int, at timestamp) WITH (event_time = at);\nCREATE STREAM gates (id int);"
    )
    result = run("-", "--streams", str(path), "--format", "json", given="SELECT num FROM flights, gates WHERE num = id")
    said = json.loads(result.output)
    assert said["class"] == "T1"
    assert said["index"]["rewriters"] == ["flights.num", "gates.id"]
    assert said["plan"]["inputs"][0]["inputs"][0]["event_time"] == "at"


def test_parameters_are_numbers_where_they_look_like_numbers():
    text = "SELECT num FROM flights WHERE num = ? AND gate = ? AND gate <> ?"
    result = run(text, "--stream", FLIGHTS, "--parameter", "7", "--parameter", "'8'", "--parameter", "A 1")
    assert "flights.num = 7 AND flights.gate = '8' AND flights.gate <> 'A 1'" in result.output


def test_a_graph_can_be_asked_for():
    assert run("SELECT num FROM flights", "--stream", FLIGHTS, "--format", "dot").output.startswith("digraph plan {")


def test_a_bad_query_is_told_with_its_place_and_a_hint():
    error = refused(run("SELECT gat FROM flights", "--stream", FLIGHTS))
    assert error.error.splitlines() == [
        'line 1, column 8: unknown column "gat"',
        "  SELECT gat FROM flights",
        "         ^^^",
    ]
    assert error.hint == 'did you mean "gate"?'


def test_streams_must_be_given_and_readable(tmp_path: Path):
    assert "which streams there are" in refused(run("SELECT num FROM flights", "--format", "dot")).error
    assert "does not describe a stream" in refused(run("SELECT 1 FROM f", "--stream", "f")).error
    bad = tmp_path / "bad.sql"
    bad.write_text("CREATE STREAM flights (num itn)")
    assert '"itn" is not a type' in refused(run("SELECT 1 FROM f", "--streams", str(bad))).error
    bad.write_bytes(b"\xff\xfe")
    assert "cannot be read" in refused(run("SELECT 1 FROM f", "--streams", str(bad))).error


def test_without_streams_and_without_a_peer_it_says_what_to_do(tmp_path: Path):
    error = run("SELECT num FROM flights", "--data-dir", str(tmp_path)).exception
    assert isinstance(error, PeerError)
    assert error.exit_code == Exit.UNREACHABLE
    assert "say which streams there are" in str(error.hint)


def create_error(*arguments: str) -> PeerError:
    return refused(CliRunner().invoke(create, list(arguments)))


def test_a_statement_that_creates_no_stream_is_refused_before_any_peer_is_asked():
    assert create_error("flights").error == 'stream "flights" needs a schema'
    assert '"itn" is not a type' in create_error("CREATE STREAM a (x itn)").error
    assert create_error("DROP STREAM a").error == "DROP STREAM does not create a stream"
    mixed = create_error("CREATE STREAM a (x int)", "--durability", "memory")
    assert mixed.error == "--durability does not go with a statement"
