"""The queries of IFLOW and StreamGlobe as they are printed, typed at a terminal, over real daemons and Spark.

Streams and tuples are those of tests/queries/papers. Each tuple also says when it happened: the hours of the
papers pass in seconds here, and what is due must not depend on how fast this machine is.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from peerd.client import Client
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from queries import query, sql_streams
from queries.catalogue import Stream
from queries.plan import Restructure
from queries.reference import Tuple, evaluate
from tests.queries.papers import PAPERS, read, tuples_of
from tests.system.clients import client, peer, until
from tests.system.ports import PORTS

LAST_AT = datetime(2026, 1, 31, 9, tzinfo=UTC)
SPARK_S = 400.0  # To start, and to plan what it has never seen, on a machine that does other things too.
SPARK = 3
SUBSCRIBER = {"iflow": 3, "streamglobe": 2}  # One at the peer with Spark, one elsewhere.
# A last photon, by which all windows before it end; what is made of itself waits for another.
LAST = (((Decimal("130.0"), Decimal("-46.0")), (1, 1)), 1, Decimal("77.7"), Decimal(1000))
QUERIES = {
    "iflow": ("2.1-q1", "2.1-q2", "4.1.1-q1", "4.1.1-q1-slide", "4.1.1-q2"),
    "streamglobe": ("1-q1", "1-q2", "2-q3", "2-q4"),
}

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One of them has Spark, and begins to start it at once."""
    cluster = Cluster(DataDir(tmp_path))
    cluster.start(3, first_port=next(PORTS), settings={"spark": "off"}, settings_of={SPARK: {"spark": "warm"}})
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


def statements(folder: Path) -> list[tuple[str, str]]:
    """The streams of a paper, each with a column more: when it happened."""
    text = (folder / "streams.sql").read_text()
    made = []
    for each in text.split("CREATE ")[1:]:
        statement = (
            "CREATE "
            + each.rstrip().removesuffix(";").removesuffix(")")
            + ", HAPPENED timestamp) WITH (event_time = HAPPENED)"
        )
        (stream,) = sql_streams.read_all(statement)
        assert isinstance(stream, sql_streams.CreateStream)
        made.append((stream.name, statement))
    return made


def happened(folder: Path) -> list[tuple[str, Tuple]]:
    """All tuples in the order in which they happened."""
    every = [
        (name, Tuple(each.time, (*each.row, each.time), each.id))
        for name, tuples in tuples_of(folder).items()
        for each in tuples
    ]
    if folder.name == "streamglobe":
        every.append(("photons", Tuple(LAST_AT, (*LAST, LAST_AT), len(every) + 1)))
    return sorted(every, key=lambda each: each[1].time)


def expected(folder: Path, name: str, streams: dict[str, Stream]) -> Counter[Any]:
    sections = read(folder / f"{name}.txt")[1]
    plan = query.parse(sections["query"], streams, json.loads(sections.get("parameters", "[]"))).plan
    tuples: dict[str, list[Tuple]] = {each: [] for each in streams}
    for stream, each in happened(folder):
        tuples[stream].append(each)
    assert not isinstance(plan, Restructure) or plan.envelope == ("photons",)
    due = [result for result in evaluate(plan, tuples) if result.window is None or f"{LAST[2]}" not in str(result.row)]
    return Counter(result.row for result in due)


async def results(reader: Client, name: str, count: int) -> Counter[Any]:
    got: Counter[Any] = Counter()
    async with reader.attach(name) as running, asyncio.timeout(SPARK_S):
        rows = aiter(running)
        while sum(got.values()) < count:
            got[tuple(await anext(rows))] += 1
    return got


@pytest.mark.parametrize("paper", QUERIES)
async def test_queries_of_a_paper_run_as_printed(cluster: Cluster, paper: str):
    folder, number = PAPERS / paper, SUBSCRIBER[paper]
    streams = {}
    for stream, statement in statements(folder):
        peer(cluster, "stream", "create", statement)
        (made,) = sql_streams.read_all(statement)
        assert isinstance(made, sql_streams.CreateStream)
        streams[stream] = made.stream
    names = {f"q{number}": name for number, name in enumerate(QUERIES[paper], start=1)}
    for name, path in names.items():
        sections = read(folder / f"{path}.txt")[1]
        parameters = [
            part for each in json.loads(sections.get("parameters", "[]")) for part in ("--parameter", f"{each}")
        ]
        arguments = ("subscribe", "-", "--name", name, "--detach", *parameters, "-p", str(number))
        assert peer(cluster, *arguments, typed=sections["query"], within_s=SPARK_S).stdout == f"{name}\n"
    async with client(cluster, 1) as one, client(cluster, number) as reader:
        for stream, each in happened(folder):
            await one.publish(stream, [each.row])
        for name, path in names.items():
            wanted = expected(folder, path, streams)
            assert await results(reader, name, sum(wanted.values())) == wanted, path
    able = cluster.client(SPARK).get("/status")["peer_id"]
    for name in names:

        def show(name: str = name) -> dict[str, Any]:
            shown: dict[str, Any] = json.loads(peer(cluster, "query", "show", name, "-p", str(number)).stdout)
            return shown

        def is_told() -> bool:
            return all(each["rows_in"] and each["state_rows"] is not None for each in show()["subgraphs"])

        await until(is_told, "rows and state are shown", SPARK_S)
        assert {each["host"] for each in show()["subgraphs"] if each["engine"] == "spark"} <= {able}
        assert show()["watermark"]["stream"] in streams
        peer(cluster, "query", "stop", name, "-p", str(number))
