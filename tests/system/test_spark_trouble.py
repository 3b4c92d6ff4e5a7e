"""Where Spark cannot be had, who needs it is told why; everything else goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.system.clients import peer, until
from tests.system.ports import PORTS


def says_it_has_spark(cluster: Cluster, number: int) -> bool:
    """Whether the other peer believes that this one has a Spark."""
    peer_id = cluster.client(number).get("/status")["peer_id"]
    members = cluster.client(3 - number).get("/members", crawl=0)
    return any(each["has_engine"] for each in members if each["peer_id"] == peer_id)


WINDOWS = "SELECT count(*) AS n FROM s [RANGE 1 SECOND SLIDE 1 SECOND]"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"spark_master": "spark://127.0.0.1:1"}, 'the Spark master "spark://127.0.0.1:1" cannot be reached'),
        ({"spark_memory": "900g"}, "too little memory for Spark"),
    ],
)
def test_without_a_session_windows_are_refused_with_the_reason_and_the_peer_goes_on(
    tmp_path: Path, settings: dict[str, str], reason: str
):
    cluster = Cluster(DataDir(tmp_path))
    cluster.start(2, first_port=next(PORTS), settings=settings)
    try:
        cluster.wait_until_up()
        peer(cluster, "stream", "create", "s", "n int")
        for text, engine in ((WINDOWS, "auto"), ("SELECT n FROM s", "spark")):
            assert reason in peer(cluster, "subscribe", text, "--engine", engine, "--detach", code=1).stderr
        assert reason in cluster.client(1).get("/status")["spark"]["last_failure"]
        asyncio.run(until(lambda: not says_it_has_spark(cluster, 1), "the other one hears that there is no Spark"))
        peer(cluster, "subscribe", "SELECT n FROM s WHERE n > 1", "--name", "plain", "--detach")
        peer(cluster, "publish", "s", '{"n": 5}', "-p", "2")
        assert json.loads(peer(cluster, "query", "attach", "plain", "-n", "1").stdout) == {"n": 5}
    finally:
        cluster.stop()
