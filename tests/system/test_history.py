"""`peer history` over real daemons: the tuples that were published between two times, from all peers that keep them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from peerd.cluster import Cluster
from peerd.errors import Exit
from spark_jobs.java import NoJava, find_java
from spark_jobs.recordings import Recording
from tests.system.clients import client, peer

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SPARK_S = 240.0  # To start and to run, on a machine that does other things too.


async def test_tuples_of_a_time_are_exported_from_all_publishers(network: Cluster, tmp_path: Path) -> None:
    async with client(network, 1) as one, client(network, 3) as three:
        await one.create_stream("spans", "n int, k string")
        await one.publish("spans", [(n, "early") for n in range(100)])
        await three.publish("spans", [(n, "early") for n in range(100, 150)])
        between = (await one.publish("spans", [(1000, "between")])).stamp
        began_ms = between >> 16
        while int(datetime.now(UTC).timestamp() * 1000) <= began_ms + 1:  # The last of the range has a time of its own.
            await one.schema("spans")
        late = (await three.publish("spans", [(n, "late") for n in range(2000, 2010)])).stamp >> 16
    assert late > began_ms
    at = datetime.fromtimestamp(began_ms / 1000, UTC).isoformat()
    done = peer(network, "history", "spans", "--stats", "--to", at, "--export", str(tmp_path / "early"), "-o", "json")
    assert 'stream "spans": 151 tuples' in done.stderr
    recording = Recording(tmp_path / "early" / "spans.parquet")
    found = {value for group in recording.groups(["n"]) for value in group.column("n").to_pylist()}
    assert found == {*range(150), 1000}
    assert json.loads(done.stdout)["spans"]["fields"][1]["distinct"] == 2
    after = datetime.fromtimestamp((began_ms + 1) / 1000, UTC).isoformat()
    done = peer(network, "history", "spans", "--stats", "--from", after, "--export", str(tmp_path / "late"))
    assert 'stream "spans": 10 tuples' in done.stderr


def test_nothing_kept_of_a_time_is_said(network: Cluster) -> None:
    peer(network, "stream", "create", "silent", "n int")
    done = peer(network, "history", "silent", "--from", "1h", code=Exit.NOT_FOUND)
    assert "nothing is kept of that time" in done.stderr
    done = peer(network, "history", "SELECT n FROM slient", code=Exit.MISUSE)
    assert 'unknown stream "slient"' in done.stderr
    assert 'did you mean "silent"' in done.stderr


@pytest.mark.slow
async def test_a_query_runs_over_the_past(network: Cluster) -> None:
    try:
        find_java("")
    except NoJava as error:
        pytest.skip(str(error))
    async with client(network, 1) as one, client(network, 2) as two:
        await one.create_stream("sales", "shop int, price decimal, at timestamp", event_time="at")
        await one.create_stream("shops", "shop int, town string, at timestamp", event_time="at")
        await two.publish("shops", [(0, "Rome", NOON), (1, "Oslo", NOON)])
        await one.publish("sales", [(n % 3, Decimal(n), NOON) for n in range(30)])
    text = """
        SELECT town, sum(price) AS turnover
        FROM sales [RANGE 1 HOUR] a, shops [RANGE 1 HOUR] b
        WHERE a.shop = b.shop
        GROUP BY TUMBLE(INTERVAL '1' HOUR), town
    """
    done = peer(network, "history", text, "-o", "csv", within_s=SPARK_S)
    header, *rows = done.stdout.splitlines()
    assert (header, sorted(rows)) == ("town,turnover", ["Oslo,145", "Rome,135"]), done.stdout
    assert "starting Spark" in done.stderr
