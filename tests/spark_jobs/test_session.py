"""A session that cannot be had says why before anything is started."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from queries.plan import Source
from queries.schema import Schema
from spark_jobs.room import WORKER, missing_room, promised_to_others_mb
from spark_jobs.session import NoSession, SessionSettings, check_master, find_java, first_line, spark_conf
from spark_jobs.stages import mode


def fake_java(home: Path, version: str) -> str:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    java.chmod(0o755)
    return str(home)


def test_a_java_that_is_new_enough_is_taken(tmp_path: Path):
    assert find_java(fake_java(tmp_path, "21.0.1")) == (tmp_path, "21.0.1")


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0"])
def test_a_java_that_is_too_old_is_named(tmp_path: Path, version: str):
    with pytest.raises(NoSession, match=rf"Java {version} at .* is too old: Spark needs 17 or newer"):
        find_java(fake_java(tmp_path, version))


def test_a_java_that_is_installed_is_found_though_an_older_one_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_java(tmp_path / "jvm" / "jdk-21", "21.0.1")
    fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setattr("spark_jobs.session.USUAL_FOLDERS", (str(tmp_path / "jvm"),))
    monkeypatch.setenv("PATH", str(tmp_path / "old" / "bin"), prepend=os.pathsep)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert find_java("") == (tmp_path / "jvm" / "jdk-21", "21.0.1")
    monkeypatch.setattr("spark_jobs.session.USUAL_FOLDERS", ())
    monkeypatch.setattr("spark_jobs.session.OWN_JAVA", tmp_path / "none")
    with pytest.raises(NoSession, match=r"Java 11.0.2 at .*old\" is too old: Spark needs 17 or newer"):
        find_java("")


def test_without_java_the_error_says_what_to_do(tmp_path: Path):
    with pytest.raises(NoSession, match="no Java was found: Spark needs 17 or newer; set JAVA_HOME"):
        find_java(str(tmp_path))


def test_too_little_memory_is_said_in_numbers():
    reason = missing_room(9_000_000)
    assert re.match(r"too little memory for Spark: it needs 9000350 MB .* MB are free", reason)
    assert missing_room(1) == ""


def test_what_a_worker_started_before_may_still_take_is_not_free():
    before = promised_to_others_mb()
    code = "from spark_jobs.room import promised_to_others_mb as p; print(p())"
    settings = msgspec.json.encode(SessionSettings(heap_mb=50_000)).decode()
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()", WORKER, settings]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, start_new_session=True) as other:
        later = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        assert int(later) - before > 30_000
        assert promised_to_others_mb() - before < 30_000  # We were here first.
        other.communicate()


def test_a_master_that_does_not_answer_is_named():
    with pytest.raises(NoSession, match=r'the Spark master "spark://127\.0\.0\.1:1" cannot be reached'):
        check_master("spark://127.0.0.1:1")
    assert check_master("local") == "127.0.0.1"


def test_a_cluster_is_told_the_address_from_which_its_master_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as master:
        assert check_master(f"spark://127.0.0.1:{master.getsockname()[1]}") == "127.0.0.1"
    assert spark_conf(SessionSettings("spark://a:7077"), "10.0.0.9")["spark.driver.host"] == "10.0.0.9"
    assert check_master("yarn") == ""  # Spark finds out.
    assert "spark.driver.host" not in spark_conf(SessionSettings("yarn"), "")


@pytest.mark.parametrize(
    ("master", "is_local"),
    [("local", True), ("local[4]", True), ("local-cluster[1,1,512]", False), ("spark://a:7077", False)],
)
def test_a_cluster_is_told_from_tasks_in_the_process(master: str, is_local: bool):
    settings = SessionSettings(master)
    assert settings.is_local == is_local
    assert ("spark.jars" in spark_conf(settings)) != is_local


def test_nothing_runs_in_real_time_mode_on_a_cluster():
    plan = Source("s", "a", Schema.parse("k int"))
    assert (mode(plan), mode(plan, is_local=False)) == ("real-time", "micro-batch")


def test_the_heap_begins_small():
    options = spark_conf(SessionSettings(heap_mb=420))["spark.driver.extraJavaOptions"].split()
    assert options[:2] == ["-Xms168m", "-Xmn93m"]


def test_settings_of_the_operator_come_last():
    conf = spark_conf(SessionSettings(heap_mb=600, extra={"spark.sql.shuffle.partitions": "4"}))
    assert conf["spark.driver.memory"] == "600m"
    assert conf["spark.sql.shuffle.partitions"] == "4"
    assert conf["spark.sql.runSQLOnFiles"] == "false"


def test_the_part_of_an_error_of_java_that_people_want_to_read_is_its_cause():
    text = "An error occurred while calling o1.start.\n: org.example.Bad: no such thing\n\tat org.example.X"
    assert first_line(text) == "org.example.Bad: no such thing"
