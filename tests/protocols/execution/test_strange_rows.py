"""Rows, times and counts that no peer of ours would send: a host, an evaluator and a proxy compute without them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from protocols.catalogue.messages import CreateStream
from protocols.catalogue.streams import StreamDefinition
from protocols.delivery.messages import Batch, Missed, Origin, Publish, Published, Punctuate, Rows
from protocols.errors import RemoteProtocolError
from protocols.events import Answered
from protocols.execution.cut import cut
from protocols.execution.messages import SubmitQuery
from protocols.ids import COUNT_MAX
from protocols.subgraphs import Progress, SubgraphStatus
from protocols.wire import COMMANDS, MESSAGES
from queries.catalogue import Stream
from queries.query import parse
from queries.schema import Field, Schema
from tests.protocols.execution.parts import LEFT, PROXY, SOUTH, WINDOWS, Host, deploy_of, flow, run_of
from tests.protocols.lone import Lone

SCHEMA = Schema.parse("id int, price decimal, at timestamp, place record(x decimal null, tag string) null")
STREAMS = {"left": Stream("left", SCHEMA, "at")}
NOON = "2026-01-01T12:00:00Z"
GOOD = (1, "2.50", NOON, ("1.5", "a"))
DEEP = b"\x91" * 5_000 + b"\xc0"
TEXTS = (
    "SELECT id FROM left WHERE price > 2 AND place.x < 3",
    "SELECT price + 1 AS a, round(price) AS b, CAST(price AS int) AS c, abs(place.x) AS d FROM left",
    "SELECT extract(hour FROM at) AS a, price * place.x AS b FROM left",
    "SELECT CASE WHEN price BETWEEN 1 AND 2 THEN place.x END AS a, at + INTERVAL '1 day' AS b FROM left",
    "SELECT place.tag, sum(price) AS s, min(place.x) AS m, max(at) AS t FROM left [RANGE 1 MINUTE] GROUP BY place.tag",
    "SELECT price, count(*) AS n FROM left [RANGE 1 HOUR SLIDE 1 MINUTE] GROUP BY price",
)
UNFIT: dict[str, tuple[Any, ...]] = {
    "no number": (1, "NaN", NOON, None),
    "no number with a payload": (1, "NaN123", NOON, None),
    "one that signals": (1, "sNaN", NOON, None),
    "infinite": (1, "-Infinity", NOON, None),
    "huge": (1, "1E+999999", NOON, None),
    "tiny": (1, "1E-999999", NOON, None),
    "no number inside": (1, "1", NOON, ("NaN", "a")),
}
EDGES: dict[str, tuple[Any, ...]] = {
    "before all time": (1, "1", "0001-01-01T00:00:00+14:00", None),
    "after all time": (1, "1", "9999-12-31T23:59:59.999999-14:00", None),
    "early": (1, "1", "0001-01-01T00:00:00Z", None),
}


def batch(first: int, *rows: tuple[Any, ...]) -> Batch:
    """A batch as a publisher may write it that checks nothing."""
    return Batch(LEFT, first, len(rows), 1000 << 16, msgspec.msgpack.encode(rows))


def opened(text: str) -> tuple[Host, int]:
    (subgraph,) = cut("q.1", parse(text, STREAMS).plan, 7, {}, PROXY, PROXY, "inline").subgraphs
    host = Host(peer=PROXY)
    (request,) = host.open(deploy_of(subgraph))
    return host, request


def status_of(host: Host) -> SubgraphStatus:
    (hosted,) = host.executor.hosted.values()
    return hosted.run.status(1, host.now)


def read(host: Host, request: int, *batches: Batch) -> None:
    host.happen(Answered(request, Rows(batches=batches), last=False))
    for _ in range(20):
        host.tick()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("row", UNFIT.values(), ids=UNFIT)
def test_nobody_computes_with_a_decimal_that_is_none(text: str, row: tuple[Any, ...]):
    host, request = opened(text)
    read(host, request, batch(0, GOOD, row, GOOD))
    (hosted,) = status_of(host).inputs
    assert (hosted.rows + hosted.late, hosted.unfit) == (2, 1)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("row", EDGES.values(), ids=EDGES)
def test_times_at_the_ends_of_the_calendar_are_computed_with(text: str, row: tuple[Any, ...]):
    host, request = opened(text)
    read(host, request, batch(0, GOOD, row, GOOD), batch(3, GOOD))
    assert len(host.executor.hosted) == 1
    (hosted,) = status_of(host).inputs
    assert hosted.rows + hosted.late == 4


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("row", [(1,), (), (None, None, None, None), (1, None, NOON, (None, None))])
def test_null_where_there_is_none_ends_a_part_of_a_query_at_most(text: str, row: tuple[Any, ...]):
    """A reader takes null for what a later version of the stream no longer has: perhaps what this query reads."""
    host, request = opened(text)
    read(host, request, batch(0, GOOD, row, GOOD), batch(3, GOOD))
    if host.executor.hosted:
        (hosted,) = status_of(host).inputs
        assert hosted.rows + hosted.late == 4


@pytest.mark.parametrize("rows", [[("1", "2", NOON, None)], [(1, "1", "no time", None)], [(1, "1", NOON, 7)]])
def test_rows_of_other_columns_end_the_part_of_the_query_that_reads_them(rows: list[tuple[Any, ...]]):
    host, request = opened(TEXTS[0])
    read(host, request, batch(0, *rows))
    assert host.executor.hosted == {}


def deep_rows(count: int, depth: int) -> bytes:
    """Rows with one more place than there is, which nests."""
    raw = msgspec.Raw(b"\x91" * depth + b"\xc0")
    return msgspec.msgpack.encode([(*GOOD, raw)] * count)


@pytest.mark.parametrize("depth", [*range(840, 1000, 4), 5000, 100_000])
def test_rows_that_nest_are_refused_where_they_enter_or_read_by_everybody(depth: int):
    """Where they are read next there may be less room on the stack than where they were checked."""

    def further_down(frames: int) -> object:
        if frames:
            return further_down(frames - 1)
        SCHEMA.decode(nested.rows)
        return msgspec.msgpack.decode(nested.rows, type=list[msgspec.Raw])

    nested = Batch(LEFT, 0, 1, 1000 << 16, deep_rows(1, depth))
    try:
        nested.check()
    except RemoteProtocolError:
        return
    assert further_down(60)


def test_a_flow_of_rows_that_nest_or_are_fewer_than_it_says_is_refused():
    for rows, count in ((deep_rows(1, 5000), 1), (SCHEMA.encode([]), 1), (b"\xc1", 1), (b"", 0)):
        with pytest.raises(RemoteProtocolError, match="as many as it says"):
            flow(rows, count, Progress()).check()


def test_decimals_inside_of_lists_are_looked_at_too():
    items = Field(
        "items", "list", False, (Field("x", "decimal", True), Field("in", "record", True, (Field("y", "decimal"),)))
    )
    schema = Schema((items,))
    good = [((("1.5", None), (None, ("2",))),), ((),)]
    bad = [((("1.5", ("NaN",)),),), ((("1E+30", None),),)]
    rows = schema.decode(msgspec.msgpack.encode([*good, *bad]))
    assert schema.held(rows) == rows[:2]


# Sums of what others have said.


def test_what_a_host_says_can_be_told_whatever_its_publishers_have_missed():
    run = run_of(WINDOWS)
    for epoch in range(1, 9):
        run.take_gap("left", Missed(origin=Origin(SOUTH, "left", epoch), first=0, next=COUNT_MAX), now=0)
    status = MESSAGES.decode(MESSAGES.encode(run.status(1, 0)))
    assert isinstance(status, SubgraphStatus)
    assert status.inputs[0].missed == COUNT_MAX


# Times that streams and their publishers may state.

CENTURIES_MS = 3000 * 366 * 24 * 3600 * 1000
TIMED = Schema.parse("id int, at timestamp")


@pytest.mark.parametrize(
    ("lateness_ms", "before_us"), [(CENTURIES_MS, None), (0, 1 << 62), (0, (1 << 63) - 2), (0, -(1 << 62))]
)
def test_windows_go_on_where_a_watermark_is_beyond_the_calendar(lateness_ms: int, before_us: int | None):
    lone = Lone()
    definition = StreamDefinition(name="s", schema=TIMED, event_time="at", lateness_ms=lateness_ms)
    lone.answer(CreateStream(definition=definition))
    lone.answer(SubmitQuery(text="SELECT count(*) AS n FROM s [RANGE 1 MINUTE]", name="q"))
    for minute in range(4):
        rows = TIMED.encode([(minute, datetime(2026, 1, 1, 0, minute, tzinfo=UTC))])
        assert isinstance(lone.answer(Publish(stream="s", rows=rows, count=1)), Published)
        lone.wait(3000)
        if before_us is not None:
            lone.answer(Punctuate(stream="s", before_us=before_us))
            lone.wait(3000)
    assert lone.peer.proxy.queries["q"].state == "running"
    assert lone.peer.proxy.queries["q"].retry.reason == ""


def test_a_punctuation_that_readers_could_not_read_is_refused():
    for before_us in (1 << 63, -(1 << 62) - 1):
        with pytest.raises(RemoteProtocolError):
            COMMANDS.decode(COMMANDS.encode(Punctuate(stream="s", before_us=before_us)))
