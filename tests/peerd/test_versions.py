"""An older and a newer peer in one network: what they share goes on, what they do not share is not tried."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from overlay.overlay import Overlay
from overlay.understanding import Understanding
from peerd.cli import doctor
from peerd.control import _member_row
from peerd.control_client import ControlClient
from peerd.courier import Courier
from peerd.datadir import DataDir
from peerd.sight import look_around
from protocols.delivery.messages import OpenSubscription, Published, PublisherNews, Rows
from protocols.events import Event, Unreachable, Unroutable
from protocols.execution.messages import QueryAccepted, QueryShown, ShowQuery, SubmitQuery
from protocols.ids import Key
from protocols.messages import Done, Refused
from protocols.placement.messages import InvalidateMap
from protocols.subgraphs import Lease
from protocols.versions import VERSIONS, Span, Versions
from protocols.wire import MESSAGES
from tests.overlay.networks import started, until
from tests.peerd.desk import SCHEMA, Desk, create, publish, running

NEWER = Span(7, 8)
EXECUTION: Versions = {**VERSIONS, "execution": NEWER, "join_index": NEWER}
LEASE = Lease(query="q", attempt=1)
MAPPED = InvalidateMap(placement="q", attempt=1, operator=1, decided_by=1)


@contextlib.asynccontextmanager
async def three(path: Path, versions: Versions) -> AsyncIterator[tuple[list[Overlay], list[Desk]]]:
    """Three daemons' worth of peers; the second one is of another release."""
    async with started(3, versions={1: versions}, engines=(1,)) as overlays, contextlib.AsyncExitStack() as stack:
        yield (
            overlays,
            [
                await stack.enter_async_context(running(overlay, path / str(place)))
                for place, overlay in enumerate(overlays)
            ],
        )


def numbers(desk: Desk, reading: int) -> list[int]:
    rows = [answer for answer in desk.answers[reading] if isinstance(answer, Rows)]
    return [row[0] for each in rows for batch in each.batches for row in SCHEMA.decode(batch.rows)]


@pytest.mark.slow
async def test_without_a_common_version_of_execution_streams_go_on_and_queries_run_elsewhere(tmp_path: Path):
    async with three(tmp_path, EXECUTION) as (overlays, (one, other, _)):
        assert isinstance(await one.answer(create("a")), Done)
        reading = one.ask(OpenSubscription(stream="a", subscription="s", since="start"))
        assert isinstance(await other.answer(publish("a", 1, 2, 3)), Published)
        await until(lambda: numbers(one, reading) == [1, 2, 3], "the older peer reads what the newer one publishes")
        back = other.ask(OpenSubscription(stream="a", subscription="t", since="start"))
        assert isinstance(await one.answer(publish("a", 4)), Published)
        await until(lambda: sorted(numbers(other, back)) == [1, 2, 3, 4], "and the other way round")

        asked = one.ask(SubmitQuery(text="SELECT n FROM a WHERE n > 5", name="q"))
        await until(lambda: _accepted(one, asked), "the query runs")
        shown = await one.answer(ShowQuery(query="q"))
        assert isinstance(shown, QueryShown)
        hosts = {each.host for each in shown.subgraphs}
        assert overlays[1].peer_id not in hosts, "what narrows a stream would be where it is published"
        accepted = _accepted(one, asked)
        assert accepted is not None
        results = one.ask(OpenSubscription(stream=accepted.stream, subscription="r", since="start"))
        assert isinstance(await other.answer(publish("a", 6, 5, 7)), Published)
        await until(lambda: sorted(numbers(one, results)) == [6, 7], "what the newer peer publishes has its results")


def _accepted(desk: Desk, request: int) -> QueryAccepted | None:
    return next((answer for answer in desk.answers[request] if isinstance(answer, QueryAccepted)), None)


@pytest.mark.slow
async def test_an_engine_that_nobody_shares_is_no_engine(tmp_path: Path):
    async with three(tmp_path, EXECUTION) as (overlays, (one, _, _)):
        assert isinstance(await one.answer(create("a")), Done)
        seen = look_around(overlays[0], "q", (overlays[1].peer_id,))
        assert set(seen.peers) == {overlays[0].peer_id, overlays[2].peer_id}
        assert seen.engines == ()
        assert seen.unshared == (overlays[1].peer_id,)
        text = "SELECT count(*) AS n FROM a [ROWS 5]"
        refused = await one.answer(SubmitQuery(text=text, name="q"))
        assert isinstance(refused, Refused)
        assert refused.code == "unavailable"
        assert '1 more was left out for another version of execution: "peer doctor" says which.' in refused.detail


async def test_a_peer_of_a_release_whose_daemon_runs_no_windows_is_known_for_it(tmp_path: Path):
    async with three(tmp_path, {**VERSIONS, "execution": Span(2, 2)}) as (overlays, _):
        seen = look_around(overlays[0], "q", (overlays[1].peer_id,))
        assert (seen.older, seen.unshared) == ((overlays[1].peer_id,), ())


async def test_a_copy_is_not_kept_where_delivery_is_not_shared(tmp_path: Path):
    async with three(tmp_path, {**VERSIONS, "delivery": NEWER}) as (overlays, (one, _, _)):
        assert one.driver._nearest() == (overlays[2].peer_id,)


async def test_what_the_other_side_does_not_share_is_not_sent_and_fails_at_once():
    async with started(2, versions={1: EXECUTION}) as (one, two):
        failures: list[Event] = []
        courier = Courier(one.router, one.understanding, failures.append)
        courier.send(two.peer_id, LEASE)
        assert failures == [Unreachable(two.peer_id, LEASE)]
        frames = one.router.counters["frames_out_total"]
        courier.send(two.peer_id, PublisherNews(stream="a"))
        await until(lambda: one.router.counters["frames_out_total"] == frames + 1, "only the one they share is sent")
        assert len(failures) == 1
        assert courier.counters["messages_not_shared_total"] == 1
        await courier.stop()


async def test_a_message_to_a_peer_that_nobody_knew_fails_when_its_hello_says_so():
    async with started(2, versions={1: EXECUTION}) as (one, two):
        failures: list[Event] = []
        stranger = Understanding()
        courier = Courier(one.router, stranger, failures.append)
        courier.send(two.peer_id, LEASE)
        assert failures == []
        stranger.learn(two.peer_id, two.address, "9", EXECUTION)  # As HELLO would.
        await until(lambda: failures, "it has failed")
        assert failures == [Unreachable(two.peer_id, LEASE)]
        await courier.stop()


@pytest.mark.slow
async def test_a_message_whose_owner_cannot_read_it_is_not_routable():
    async with started(2, versions={1: {**VERSIONS, "placement": NEWER}}) as (one, two):
        failures: list[Event] = []
        courier = Courier(one.router, one.understanding, failures.append)
        key = Key(bytes(two.peer_id))
        courier.route(key, MAPPED)
        await until(lambda: failures, "it has failed")
        assert failures == [Unroutable(key, MAPPED)]
        await courier.stop()


async def test_what_is_not_shared_is_not_read_and_unknown_kinds_are_said_once(tmp_path: Path):
    async with started(2, versions={1: EXECUTION}) as (one, two), running(one, tmp_path) as desk:
        newer = two.peer_id
        with capture_logs() as logs:
            for _ in range(3):
                one.router.on_message(
                    newer, None, b"\x01" + msgspec.msgpack.encode(["LEASE", "of", "another", "shape"])
                )
                one.router.on_message(newer, None, b"\x01" + msgspec.msgpack.encode(["HANDSHAKE", 1, {"a": 2}]))
                one.router.on_message(newer, None, MESSAGES.encode(PublisherNews(stream="a")))
        counters = desk.driver.counters
        assert counters["messages_unread_total"] == 3
        assert counters["messages_unknown_total"] == 3
        assert counters["messages_in_total"] == 3
        assert counters["messages_malformed_total"] == 0
        said = [line for line in logs if "does not know" in line["event"]]
        assert [(line["sender"], line["kind"]) for line in said] == [(newer.short, "HANDSHAKE")]
        assert desk.driver.is_running


@pytest.mark.parametrize(
    ("versions", "status", "found", "advice"),
    [
        (VERSIONS, "ok", "shared with all 1 peers that this one knows", ""),
        (
            EXECUTION,
            "warn",
            "does not share execution (2 to 3 here, 7 to 8 there), join_index (3 here, 7 to 8 there): neither "
            "runs parts of the other's queries, neither joins for the other",
            "upgrade this peer",
        ),
    ],
)
async def test_members_and_doctor_tell_what_is_not_shared(
    versions: Versions, status: str, found: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with started(2, versions={1: versions}) as (one, _):
        rows = [_member_row(member, one) for member in one.members()]
        assert [row["not_shared"] for row in rows if row["is_self"]] == [""]
        monkeypatch.setattr(ControlClient, "get", lambda *_, **__: rows)
        (finding,) = doctor._versions(DataDir(tmp_path), running=True)
        assert (finding.status, finding.next_step) == (status, advice)
        assert finding.finding.endswith(found)


async def test_doctor_names_a_peer_that_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with started(1) as (one,):
        stranger = Key.of("stranger")
        one.understanding.learn(type(one.peer_id)(stranger), ("127.0.0.1", 9), "0.1.0", {})
        rows = [_member_row(member, one) for member in one.members()]
        monkeypatch.setattr(ControlClient, "get", lambda *_, **__: rows)
        (finding,) = doctor._versions(DataDir(tmp_path), running=True)
        assert (finding.status, finding.next_step) == ("fail", "upgrade that peer")
        assert "(release 0.1.0) at 127.0.0.1:9 does not share link (2 here, none there)" in finding.finding
        assert finding.finding.endswith("they do not link")
