"""Where rows for Spark find no room, a run ends with the reason, and the engine goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spark_jobs import scratch
from spark_jobs.rehearsal import INPUTS, rehearsed
from spark_jobs.session import SessionSettings
from tests.spark_jobs.live import Live
from tests.spark_jobs.small_folder import FULL, mounted

FULL_NOW = "no space left on device"


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for rows, a megabyte large. Its name is short, since sockets in it must have short names."""
    folder = tmp_path_factory.mktemp("r") / "s"
    with mounted(folder, FULL) as is_mounted:
        if not is_mounted:
            pytest.skip("only root can mount a small file system")
        monkeypatch.setattr(scratch, "MEMORY", folder)
        monkeypatch.setattr(scratch, "ROOM_MIN_MB", 0)
        yield folder


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """An engine whose Java never gets ready."""
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexec sleep 300\n")
    program.chmod(0o755)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="21"\n')
    live = Live(SessionSettings(java_home=str(tmp_path / "java")))
    yield live
    live.close()


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_run_without_room_for_its_folder_fails_and_leaves_nothing(folder: Path, live: Live):
    live.start("first", rehearsed())
    before = sorted(folder.rglob("*"))
    fill(folder)
    reason = live.start("q", rehearsed()).reason
    assert reason.startswith("rows cannot be handed to Spark: ")
    assert FULL_NOW in reason
    assert list(live.engine.status().runs) == ["first"]
    (folder / "filler").unlink()
    assert sorted(folder.rglob("*")) == before
    assert not live.start("again", rehearsed()).reason, "with room it begins"


def test_without_room_for_a_rehearsal_spark_counts_as_tried_and_failed(folder: Path, live: Live):
    fill(folder)

    async def warm() -> None:
        live.engine.warm()

    live.loop.run_until_complete(warm())
    assert FULL_NOW in live.tries[0]
    assert live.engine.state == "off"


@pytest.mark.slow
def test_rows_that_find_no_room_end_their_run_and_no_other(folder: Path, live: Live):
    told = live.start("q", rehearsed())
    live.start("other", rehearsed())
    fill(folder)
    number, alias, rows, *_ = INPUTS[0]
    live.feed("q", number, alias, rows * 1000)
    live.until(lambda: told.reason)
    assert told.reason.startswith("rows could not be handed to Spark: ")
    assert FULL_NOW in told.reason.lower()
    assert list(live.engine.status().runs) == ["other"]
