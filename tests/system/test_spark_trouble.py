"""Where Spark cannot be had, nobody is told that it can; who needs it goes elsewhere, or is told why not."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.spark_jobs.small_folder import FULL, NOEXEC, mounted
from tests.system.clients import peer, until
from tests.system.ports import PORTS

WINDOWS = "SELECT count(*) AS n FROM s [RANGE 1 SECOND SLIDE 1 SECOND]"
ON_SPARK = f"{WINDOWS} WITH (engine = spark)"
LAST_ROWS = "SELECT count(*) AS n FROM s [ROWS 2]"
ENOUGH_MB = 270  # A little more than Spark needs of a scratch folder.


def says_it_has_spark(cluster: Cluster, number: int) -> bool:
    """Whether the other peer believes that this one has a Spark."""
    peer_id = cluster.client(number).get("/status")["peer_id"]
    members = cluster.client(3 - number).get("/members", crawl=0)
    return any(each["has_engine"] for each in members if each["peer_id"] == peer_id)


def spark_findings(cluster: Cluster, number: int) -> dict[str, dict[str, str]]:
    """What `peer doctor` says of a peer's Spark and of what it needs."""
    findings = json.loads(peer(cluster, "doctor", "-p", str(number), "-o", "json").stdout)
    return {each["check"]: each for each in findings if each["check"].startswith(("Spark", "Java"))}


@contextlib.contextmanager
def scratch(folder: Path, options: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The scratch folder of the daemons that are started meanwhile."""
    with mounted(folder, options) as is_mounted:
        if not is_mounted:
            pytest.skip("only root can mount a small file system")
        monkeypatch.setenv("TMPDIR", str(folder))
        yield folder


@pytest.fixture(params=["master", "memory", "full", "noexec"])
def lacking(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Cluster, str, str]]:
    """Two peers that cannot start Spark; which check of the doctor tells, and what it says."""
    settings, check, reason, options = {
        "master": (
            {"spark_master": "spark://127.0.0.1:1"},
            "Spark master",
            'the Spark master "spark://127.0.0.1:1" cannot be reached',
            "",
        ),
        "memory": ({"spark_memory": "900g"}, "Spark memory", "too little memory for Spark", ""),
        "full": ({}, "Spark scratch", "is too full for Spark", FULL),
        "noexec": ({}, "Spark scratch", "is mounted noexec", NOEXEC),
    }[request.param]
    with contextlib.ExitStack() as stack:
        if options:
            stack.enter_context(scratch(tmp_path / "scratch", options, monkeypatch))
        cluster = Cluster(DataDir(tmp_path / "peers"))
        stack.callback(cluster.stop)
        cluster.start(2, first_port=next(PORTS), settings=settings)
        cluster.wait_until_up()
        yield cluster, check, reason


def test_where_no_peer_can_start_spark_what_needs_it_is_refused_with_the_reason_and_the_peers_go_on(
    lacking: tuple[Cluster, str, str],
):
    cluster, check, reason = lacking
    assert not says_it_has_spark(cluster, 1)
    assert not says_it_has_spark(cluster, 2)
    peer(cluster, "stream", "create", "s", "n int")
    for text, engine in ((LAST_ROWS, "auto"), (ON_SPARK, "auto"), ("SELECT n FROM s", "spark")):
        assert reason in peer(cluster, "subscribe", text, "--engine", engine, "--detach", code=1).stderr
    status = cluster.client(1).get("/status")["spark"]
    assert status["state"] == "off"
    assert reason in status["missing"]
    finding = spark_findings(cluster, 1)[check]
    assert finding["status"] == "warn"
    assert reason in finding["finding"]
    assert finding["next_step"]
    peer(cluster, "subscribe", "SELECT n FROM s WHERE n > 1", "--name", "plain", "--detach")
    peer(cluster, "publish", "s", '{"n": 5}', "-p", "2")
    assert json.loads(peer(cluster, "query", "attach", "plain", "-n", "1").stdout) == {"n": 5}


@pytest.mark.slow
async def test_where_the_first_peer_cannot_start_spark_after_all_the_next_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The scratch folder of the first peer fills up between the moment when it said that it has Spark and a query."""
    cluster = Cluster(DataDir(tmp_path / "peers"))
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start(2, first_port=next(PORTS))
        cluster.wait_until_up()
        folder = stack.enter_context(scratch(tmp_path / "scratch", f"size={ENOUGH_MB}m", monkeypatch))
        cluster.kill(1)
        cluster.restart(1)
        await until(lambda: says_it_has_spark(cluster, 1) and says_it_has_spark(cluster, 2), "both offer Spark")
        peer(cluster, "stream", "create", "s", "n int, at timestamp", "--event-time", "at")
        with (folder / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, ENOUGH_MB - 10 << 20)
        peer(cluster, "subscribe", ON_SPARK, "--name", "windows", "--detach")
        shown: dict[str, Any] = json.loads(peer(cluster, "query", "show", "windows", "-o", "json").stdout)
        (host,) = (each["host"] for each in shown["subgraphs"] if each["engine"] == "spark")
        assert host == cluster.client(2).get("/status")["peer_id"]
        rows = [{"n": n, "at": f"2026-05-01T12:00:0{n}Z"} for n in range(5)]
        peer(cluster, "publish", "s", "-", typed="\n".join(map(json.dumps, rows)))
        assert peer(cluster, "query", "attach", "windows", "-n", "3", "-o", "jsonl").stdout == '{"n": 1}\n' * 3
        await until(lambda: not says_it_has_spark(cluster, 1), "the first one no longer says that it has Spark")
        assert spark_findings(cluster, 1)["Spark scratch"]["status"] == "warn"
        assert spark_findings(cluster, 2)["Spark"]["finding"].startswith("4.")
