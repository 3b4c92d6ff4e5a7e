"""Whether Spark could be started is found out without starting anything; what is missing is said, with a next step."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from spark_jobs import java, room
from spark_jobs.java import NoJava, find_java
from spark_jobs.prospects import Finding, prospects
from spark_jobs.room import WORKER, available_mb, missing_room, promised_to_others_mb
from spark_jobs.scratch import unusable_scratch
from spark_jobs.session import SessionSettings
from tests.spark_jobs.small_folder import FULL, NOEXEC, ROOMY, scratch

# Java.


def fake_java(home: Path, version: str, *, says: str = "") -> str:
    """A Java that cannot run, only tell its version: in its release file or, without one, when it is asked."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{says}\" 2020-01-01' >&2\n")
    program.chmod(0o755)
    if not says:
        (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n')
    return str(home)


@pytest.fixture
def no_other_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any Java but those of the test."""
    monkeypatch.setattr(java, "USUAL_FOLDERS", ())
    monkeypatch.setattr(java, "OWN_JAVA", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_a_java_that_is_new_enough_is_taken_by_its_release_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(java, "_ask", lambda *_: pytest.fail("it was run"))
    assert find_java(fake_java(tmp_path, "21.0.1")) == (tmp_path, "21.0.1")


def test_a_java_without_a_release_file_is_asked_once(tmp_path: Path):
    home = fake_java(tmp_path, "", says="21.0.1")
    assert find_java(home) == (tmp_path, "21.0.1")
    before = java._said.cache_info().misses
    assert find_java(home) == (tmp_path, "21.0.1")
    assert java._said.cache_info().misses == before


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392"])
def test_a_java_that_is_too_old_is_named(tmp_path: Path, version: str):
    shown = version.partition("_")[0]
    with pytest.raises(NoJava, match=rf"Java {shown} at .* is too old: Spark needs 17 or newer"):
        find_java(fake_java(tmp_path, version))


@pytest.mark.usefixtures("no_other_java")
def test_a_java_that_is_installed_is_found_though_an_older_one_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_java(tmp_path / "jvm" / "jdk-21", "21.0.1")
    fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("PATH", str(tmp_path / "old" / "bin"))
    with pytest.raises(NoJava, match=r"Java 11.0.2 at .*old\" is too old: Spark needs 17 or newer"):
        find_java("")
    monkeypatch.setattr(java, "USUAL_FOLDERS", (str(tmp_path / "jvm"),))
    assert find_java("") == (tmp_path / "jvm" / "jdk-21", "21.0.1")


@pytest.mark.usefixtures("no_other_java")
def test_without_java_there_is_no_spark_and_a_next_step():
    with pytest.raises(NoJava, match="no Java was found: Spark needs 17 or newer; set JAVA_HOME"):
        find_java("")
    found = prospects(SessionSettings())
    assert found.reason.startswith("no Java was found")
    (finding,) = (each for each in found.findings if each.what == "Java")
    assert "openjdk-17-jre-headless" in finding.step


# Memory.


def test_too_little_memory_is_said_in_numbers():
    reason = missing_room(9_000_000)
    assert re.match(r"too little memory for Spark: it needs 9000350 MB .* MB are free", reason)
    assert missing_room(1) == ""
    assert prospects(SessionSettings(heap_mb=9_000_000)).reason


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (
            2,
            {
                "memory.max": "1073741824",
                "memory.current": "838860800",
                "memory.stat": "anon 1\ninactive_file 104857600\nactive_file 104857600\ntotal_inactive_file 7",
            },
        ),
        (
            1,
            {
                "memory/memory.limit_in_bytes": "1073741824",
                "memory/memory.usage_in_bytes": "838860800",
                "memory/memory.stat": "inactive_file 7\ntotal_inactive_file 104857600\ntotal_active_file 104857600",
            },
        ),
    ],
)
def test_the_limit_of_a_container_counts_and_files_that_were_read_do_not(
    version: int, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(room, "_GROUP", tmp_path)
    monkeypatch.setattr(room, "_MEMORY", tmp_path / "meminfo")
    assert available_mb() == 424, f"of version {version}"
    (tmp_path / "meminfo").write_text("MemAvailable:  102400 kB\n")
    assert available_mb() == 100, "the machine has less than the container may take"
    for name in files:
        (tmp_path / name).write_text("max\n")
    assert available_mb() == 100, "there is no limit"


def test_what_other_workers_may_still_take_is_not_free_and_the_older_of_two_comes_first():
    before = promised_to_others_mb()
    settings = msgspec.json.encode(SessionSettings(heap_mb=3000)).decode()
    code = "import sys; from spark_jobs.room import promised_to_others_mb as p; sys.stdin.read(1); print(p())"
    command = [sys.executable, "-c", code, WORKER, settings]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True, "text": True}
    with subprocess.Popen(command, **pipes) as older:
        time.sleep(2 / os.sysconf("SC_CLK_TCK"))  # The machine counts starts in ticks.
        with subprocess.Popen(command, **pipes) as younger:
            assert promised_to_others_mb() - before > 4000, "a daemon counts both"
            assert int(younger.communicate("x")[0]) - before > 1000
            assert int(older.communicate("x")[0]) - before < 1000


# The scratch folder.


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (ROOMY, ""),
        (FULL, r"is too full for Spark: it needs 256 MB, [01] MB are free"),
        (NOEXEC, "is mounted noexec, and Spark loads native libraries from there"),
    ],
)
def test_a_scratch_folder_has_room_and_lets_libraries_run(
    options: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with scratch(tmp_path, options, monkeypatch) as folder:
        assert re.fullmatch(f'the scratch folder "{folder}" {reason}' if reason else "", unusable_scratch())
        found = prospects(SessionSettings())
    assert [each.step for each in found.findings if each.what == "Spark scratch" and each.reason] == (
        ["make room there, or set TMPDIR to a folder with room on a file system without noexec"] if reason else []
    )


def test_a_scratch_folder_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    assert unusable_scratch().endswith('nowhere" cannot be used: no such file or directory')


# A master.


def test_a_master_that_does_not_answer_is_named():
    found = prospects(SessionSettings("spark://127.0.0.1:1"))
    assert found.findings[-1].reason.startswith('the Spark master "spark://127.0.0.1:1" cannot be reached')
    assert found.findings[-1].step


def test_our_address_is_the_one_from_which_a_master_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"spark://127.0.0.1:{server.getsockname()[1]}"
        found = prospects(SessionSettings(master))
    assert (found.own_address, found.findings[-1]) == ("127.0.0.1", Finding("Spark master", f"{master} answers"))
    assert prospects(SessionSettings("local")).own_address == "127.0.0.1"
    assert prospects(SessionSettings("yarn")).own_address == "", "Spark finds out"


def test_to_look_takes_little_time():
    prospects(SessionSettings())
    began_at = time.process_time()
    for _ in range(10):
        prospects(SessionSettings())
    assert time.process_time() - began_at < 2, "0.2 s each, on a machine with thousands of processes"
