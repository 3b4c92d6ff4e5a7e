"""The daemon in this process, as a member of a real network: what goes wrong with its files must not end it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from overlay.identity import JoinToken, Network
from peerd import service
from peerd.admission import store_token
from peerd.cli import doctor
from peerd.config import Config
from peerd.datadir import DataDir
from peerd.disk import FileDisk
from peerd.errors import PeerError
from peerd.service import Daemon
from protocols.journal.journal import Journal
from protocols.store.messages import NeighboursKept
from protocols.wire import RECORDS
from tests.overlay.networks import started, until


async def test_a_peer_that_cannot_write_down_its_contacts_goes_on_says_so_once_and_says_goodbye(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(service, "CONTACTS_EVERY_S", 0.05)
    data = DataDir(tmp_path)
    data.prepare()
    (tmp_path / "contacts.new").mkdir()
    tries = 0
    read_contacts = DataDir.read_contacts

    def count_tries(self: DataDir) -> list[str]:
        nonlocal tries
        tries += 1
        return read_contacts(self)

    monkeypatch.setattr(DataDir, "read_contacts", count_tries)
    async with started(1) as (other,):
        store_token(data, JoinToken(other.network, (other.address,)))
        daemon = Daemon(Config(port=0, http_port=0), data)
        with capture_logs() as logs:
            running = asyncio.ensure_future(daemon.run())
            await until(lambda: running.done() or tries > 5, "it has tried to write several times")
            assert not running.done(), running.exception()
            daemon.request_stop("test")
            await running
        assert [member.status for member in other.members() if not member.is_self] == ["left"]
        warnings = [entry for entry in logs if entry["event"] == "cannot write down the members met"]
        assert [entry["file"] for entry in warnings] == [str(data.contacts_file)]


async def test_contacts_are_written_down_once_there_is_room_again_and_after_the_goodbye(tmp_path: Path, monkeypatch):
    data = DataDir(tmp_path)
    data.prepare()
    async with started(1) as (other,):
        store_token(data, JoinToken(other.network, (other.address,)))
        statuses: list[list[str]] = []
        write_contacts = DataDir.write_contacts

        def note_and_write(self: DataDir, contacts: list[str]) -> None:
            statuses.append([member.status for member in other.members() if not member.is_self])
            write_contacts(self, contacts)

        monkeypatch.setattr(DataDir, "write_contacts", note_and_write)
        (tmp_path / "contacts.new").mkdir()
        daemon = Daemon(Config(port=0, http_port=0), data)
        running = asyncio.ensure_future(daemon.run())
        await until(lambda: running.done() or statuses, "it has tried to write")
        assert not running.done(), running.exception()
        (tmp_path / "contacts.new").rmdir()
        daemon.request_stop("test")
        await running
        assert statuses == [["alive"], ["left"]]
        assert data.read_contacts() == [f"127.0.0.1:{other.address[1]}"]


async def test_a_journal_that_a_newer_release_wrote_is_refused_in_clear_words(tmp_path: Path):
    data = DataDir(tmp_path)
    data.prepare()
    with FileDisk(data.journal_dir) as disk:
        journal = Journal(disk, lambda _: b"\x01" + msgspec.msgpack.encode(["LATER", 1]), RECORDS.decode)
        journal.recover()
        journal.append(NeighboursKept(peers=()))
        pending = journal.take()
        assert pending is not None
        pending.write(disk)
    store_token(data, JoinToken(Network.create("test"), ()))
    with pytest.raises(PeerError, match="cannot read: kind LATER is not known to this release") as refused:
        await Daemon(Config(port=0, http_port=0), data).run()
    assert "Start the peer with that release." in str(refused.value.hint)


@pytest.mark.parametrize(
    ("release", "reason"),
    [("", "no Java was found"), ('JAVA_VERSION="11.0.2"', "is too old: Spark needs 17 or newer")],
)
async def test_a_peer_without_a_java_for_spark_says_from_the_start_that_it_has_none(
    release: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    java = tmp_path / "java"
    if release:
        (java / "bin").mkdir(parents=True)
        (java / "bin" / "java").touch(0o755)
        (java / "release").write_text(release)
    monkeypatch.setattr("spark_jobs.java._java_homes", lambda _: iter([java]))
    data = DataDir(tmp_path / "data")
    data.prepare()
    async with started(1) as (other,):
        store_token(data, JoinToken(other.network, (other.address,)))
        daemon = Daemon(Config(port=0, http_port=0, spark="warm"), data)
        running = asyncio.ensure_future(daemon.run())
        said: list[bool] = []
        other.on_up.append(lambda record: said.append(record.has_engine))
        await until(lambda: running.done() or (said and daemon.driver.is_running), "it is a member")
        assert not running.done(), running.exception()
        assert said == [False], "nobody ever heard of an engine"
        assert reason in daemon.driver.engines.status()["missing"]
        (finding, *_) = doctor._spark(data, daemon.config, running=False)
        assert (finding.check, finding.status) == ("Java", "warn")
        assert reason in finding.finding
        assert "openjdk-17-jre-headless" in finding.next_step
        daemon.request_stop("test")
        await running
