"""Queries over recorded streams: the results of the reference, whatever the order of the recording."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

pytest.importorskip("pyspark")

from queries import sql
from queries.catalogue import Stream
from queries.expressions import EPOCH, MICROSECOND
from queries.plan import Operator, Restructure
from queries.reference import Streams, Tuple, evaluate, same_rows
from queries.schema import Row, Schema
from queries.spark_forms import NoForm
from spark_jobs.history import PARQUET, batch, prepared, read_results
from spark_jobs.recordings import NoRecording, Recorder, Recording, open_all
from spark_jobs.runner import INTERPRETED
from tests.queries.papers import FILES, planned, streams_of, tuples_of
from tests.queries.random_queries import Queries
from tests.queries.random_sql import STREAMS, data
from tests.seeds import draw_seed

PLANS, ROWS = 25, 16
NESTED = Stream(
    "nested", Schema.parse("n int, spot record(x int, deep record(y string null) null) null, raw bytes, at timestamp")
)
NESTED_ROWS = [
    (1, (1, ("a",)), b"\x00", EPOCH),
    (2, (2, None), b"", EPOCH + timedelta(days=-700_000)),
    (3, None, b"x", EPOCH + timedelta(days=2_900_000, microseconds=1)),
    (4, (4, (None,)), b"y", EPOCH),
]


@pytest.fixture(scope="module")
def spark(one_spark: Any) -> Any:
    session = one_spark.newSession()
    for name, value in (PARQUET | INTERPRETED).items():
        session.conf.set(name, value)
    return session


def record(folder: Path, streams: Streams, known: dict[str, Stream], source: random.Random) -> None:
    """Write streams down as some peers would have brought them: each in its order, the peers mixed."""
    for name, tuples in streams.items():
        ordered = sorted(enumerate(tuples), key=lambda each: (each[1].time, each[0]))
        places = list(range(len(ordered)))
        cut = source.randint(0, len(places))
        recorder = Recorder(folder, known[name])
        for place in places[cut:] + places[:cut]:
            # One time may have several tuples: the number decides, as the place in the list does.
            recorder.add("peer/1", place, (ordered[place][1].time - EPOCH) // MICROSECOND, [ordered[place][1].row])
        recorder.close()


def run(spark: Any, plan: Operator, folder: Path) -> list[Row]:
    work = folder / "work"
    work.mkdir()
    recordings = open_all(folder)
    rows = list(read_results(plan, batch(spark, plan, prepared(plan, recordings, work), work / "results")))
    for path in sorted(work.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    work.rmdir()
    return rows


@pytest.mark.system
def test_random_queries_over_recordings_have_the_results_of_the_reference(spark: Any, tmp_path: Path) -> None:
    seed = draw_seed()
    source = random.Random(seed)
    streams, queries = data(source, ROWS), Queries(source)
    record(tmp_path, streams, STREAMS, source)
    shapes: Counter[str] = Counter()
    found = 0
    while shapes.total() < PLANS:
        pair = queries.query()
        plan = sql.plan(pair.ours, STREAMS).plan
        try:
            theirs = run(spark, plan, tmp_path)
        except NoForm:
            continue
        ours = [each.row for each in evaluate(plan, streams)]
        assert same_rows(ours, theirs), f"seed {seed}: {pair.ours}\nreference {ours}\nSpark {theirs}"
        shapes[pair.shape] += 1
        found += len(ours)
    print(f"{found} rows; {dict(sorted(shapes.items()))}")
    assert found > PLANS


@pytest.mark.system
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_query_of_the_papers_over_recordings(spark: Any, path: Path, tmp_path: Path) -> None:
    plan = planned(path).plan
    body = plan.input if isinstance(plan, Restructure) else plan
    streams = tuples_of(path.parent)
    record(tmp_path, streams, streams_of(path.parent), random.Random(1))
    ours = [each.row for each in evaluate(body, streams)]
    assert same_rows(ours, run(spark, body, tmp_path))


@pytest.mark.system
def test_nested_records_bytes_and_far_times_come_back(spark: Any, tmp_path: Path) -> None:
    streams = {"nested": [Tuple(EPOCH + timedelta(seconds=n), row, n) for n, row in enumerate(NESTED_ROWS)]}
    record(tmp_path, streams, {"nested": NESTED}, random.Random(1))
    plan = sql.plan(
        "SELECT n, nested.spot.deep.y AS y, spot, raw, at FROM nested",
        {"nested": NESTED},
    ).plan
    assert run(spark, plan, tmp_path) == [each.row for each in evaluate(plan, streams)]


def test_a_recording_keeps_rows_and_what_the_stream_promised(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, NESTED)
    recorder.add("peer/1", 7, 1_000_000, NESTED_ROWS)
    recorder.close()
    (recording,) = open_all(tmp_path).values()
    assert (recording.stream, recording.rows) == (NESTED, 4)
    (group,) = recording.groups()
    row = group.to_pylist()[1]
    assert (row["n"], row["spot"], row["$origin"], row["$sequence"]) == (2, {"x": 2, "deep": None}, "peer/1", 8)
    assert row["$published"] == EPOCH + timedelta(seconds=1)


def test_a_recording_leaves_out_decimals_that_an_earlier_release_accepted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, Stream("prices", Schema.parse("price decimal")))
    texts = ("7.00", "1E-50", "9" * 38, "99999999999999999999.999999999999999999")
    recorder.add("peer/1", 7, 0, [(Decimal(text),) for text in texts])
    assert (recorder.rows, recorder.unfit) == (2, 2)
    recorder.close()
    (recording,) = open_all(tmp_path).values()
    (group,) = recording.groups()
    assert [(row["price"], row["$sequence"]) for row in group.to_pylist()] == [(7, 7), (Decimal(texts[3]), 10)]


def test_a_recording_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, NESTED)
    recorder.add("peer/1", 0, 0, NESTED_ROWS)
    recorder.drop()
    assert list(tmp_path.iterdir()) == []


def test_another_file_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no")
    parquet.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    for name in ("text", "other", "none"):
        with pytest.raises(NoRecording):
            Recording(tmp_path / f"{name}.parquet")
