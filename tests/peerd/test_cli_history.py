"""`peer history` on exported files, without a network and without Spark; and `peer explain` with what it tells."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("pyarrow")

from peerd.cli.explain import explain
from peerd.cli.history import history
from peerd.errors import Exit, PeerError
from queries.catalogue import Stream
from queries.expressions import EPOCH
from queries.schema import Schema
from spark_jobs.recordings import Recorder

FLIGHTS = Stream("flights", Schema.parse("id int, flight string, delay decimal null, at timestamp"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """100 tuples in 10 s, of two peers, the younger first."""
    recorder = Recorder(tmp_path, FLIGHTS)
    for place in (*range(50, 100), *range(50)):
        row = (
            place,
            "LH" if place % 4 else "OS",
            None if place % 2 else Decimal(place),
            EPOCH + timedelta(seconds=place),
        )
        recorder.add(f"peer/{place // 50}", place, place * 10_000_000 // 99, [row])
    recorder.close()
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(history, list(arguments), catch_exceptions=True)


def refused(result: Result, code: Exit) -> PeerError:
    assert isinstance(result.exception, PeerError)
    assert result.exception.exit_code == code
    return result.exception


def test_statistics_of_a_recording_feed_explain(folder: Path) -> None:
    result = run("flights", "--parquet", str(folder), "--stats", "-o", "json")
    known = json.loads(result.stdout)["flights"]
    fields = {each["path"][0]: each for each in known["fields"]}
    assert (known["rate_per_s"], known["retention_s"]) == (10.0, 86_400.0)
    assert (fields["id"]["distinct"], fields["id"]["low"], fields["id"]["high"], fields["id"]["increment"]) == (
        100.0,
        0.0,
        99.0,
        1.0,
    )
    assert fields["flight"]["frequent"] == [['"LH"', 0.75], ['"OS"', 0.25]]
    assert (fields["delay"]["nulls"], fields["delay"]["distinct"]) == (0.5, 50.0)
    assert fields["at"]["high"] == 99_000_000
    file = folder / "stats.json"
    file.write_text(result.stdout)
    text = "SELECT id FROM flights WHERE flight = 'OS' AND id < 50"
    told = CliRunner().invoke(explain, [text, "--stream", f"flights: {FLIGHTS.schema}", "--stats", str(file)])
    found = [re.findall(r"([\d.,]+) (?:rows/s|bytes/s|bytes)", line) for line in told.output.splitlines()[2:]]
    assert [rate for rate, _, _ in found] == ["1.24", "1.24", "10"], "a quarter of half of them"
    assert all(float(rate) * float(size) == pytest.approx(float(flow), rel=0.01) for rate, size, flow in found)


def test_what_cannot_be_read_is_said(folder: Path, tmp_path: Path) -> None:
    assert "unknown stream" in str(refused(run("flihts", "--parquet", str(folder)), Exit.MISUSE))
    assert "do not go together" in str(refused(run("flights", "--parquet", str(folder), "--to", "1h"), Exit.MISUSE))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no recording" in str(refused(run("flights", "--parquet", str(empty)), Exit.NOT_FOUND))
    (empty / "other.parquet").write_text("nothing")
    assert "is not a recording" in str(refused(run("flights", "--parquet", str(empty)), Exit.MISUSE))


def test_without_java_it_says_so(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.java._java_homes", lambda home: iter((tmp_path / "nowhere",)))
    error = refused(run("flights", "--parquet", str(folder)), Exit.FAILED)
    assert "needs Spark" in error.error
    assert "no Java was found" in str(error.detail)
    assert not list(Path(folder).glob("source*"))


def test_statistics_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text('{"flights": 3}')
    arguments = ["SELECT id FROM flights", "--stream", "flights: id int", "--stats", str(tmp_path / "stats.json")]
    assert "holds no statistics" in str(refused(CliRunner().invoke(explain, arguments), Exit.MISUSE))
