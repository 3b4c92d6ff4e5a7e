"""The settings that a session is started with."""

from __future__ import annotations

import pytest

from queries.plan import Source
from queries.schema import Schema
from spark_jobs.session import SessionSettings, first_line, spark_conf
from spark_jobs.stages import mode


def test_a_cluster_is_told_our_address_unless_spark_has_to_find_out():
    assert spark_conf(SessionSettings("spark://a:7077"), "10.0.0.9")["spark.driver.host"] == "10.0.0.9"
    assert "spark.driver.host" not in spark_conf(SessionSettings("yarn"), "")


def test_files_of_java_go_to_the_scratch_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", "/some where")
    assert '"-Djava.io.tmpdir=/some where"' in spark_conf(SessionSettings())["spark.driver.extraJavaOptions"]


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
