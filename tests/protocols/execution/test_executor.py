"""The host of subgraphs: how they are taken in, wired, fed, relieved and let go."""

from __future__ import annotations

import msgspec
import pytest

from protocols.catalogue.streams import Reads
from protocols.delivery.messages import Batch, Missed, Opened, OpenSubscription, Publishers, Rows, Seen, Silent
from protocols.delivery.needs import Needs
from protocols.effects import Effect, Send, SetTimer, Tell
from protocols.events import Abandoned, Answered, Received, Requested, TimerFired
from protocols.execution.cut import introduced
from protocols.execution.engine import FeedRun, RunFailed, RunResults, RunStarted, RunState, StartRun, StopRun
from protocols.execution.executor import (
    FLOWED_MAX,
    FLOWED_MS,
    IN_FLIGHT_MAX,
    LEASE_MS,
    MORE,
    RESEND_MS,
    STATUS_MS,
    TICK,
    TICK_MS,
    WORK_MAX,
)
from protocols.execution.flow_rows import FLOW_BYTES, encode_rows
from protocols.execution.hosted import TIMED_MS
from protocols.messages import Message, Refused
from protocols.sieve import selected
from protocols.subgraphs import (
    PATIENCE_MS,
    Deploy,
    Deployed,
    DeployRefused,
    Flow,
    Flowed,
    FlowInput,
    Inline,
    Lease,
    Progress,
    ResultsReady,
    ResultsSafe,
    Sharing,
    SubgraphStatus,
    Undeploy,
)
from queries.plan import sources
from tests.protocols.execution.parts import (
    JOIN,
    LEFT,
    NORTH,
    PROXY,
    PUBLISHERS,
    RIGHT,
    SELECT,
    WORKER,
    Host,
    at,
    batch,
    cut_of,
    deploy_of,
    numbered,
    reach,
    silence,
)

THEIRS = f"q.1.1~1@{PROXY.hex()}"  # A run for the proxy at another peer.


def maker() -> Deploy:
    """The selection at the publisher's peer, whose rows flow to the proxy."""
    return deploy_of(cut_of(SELECT, publishers=PUBLISHERS).subgraphs[0])


def last(text: str, *, sharing: Sharing = "auto", **where: object) -> Deploy:
    made = introduced(cut_of(text, **where), {}, PATIENCE_MS, sharing)  # type: ignore[arg-type]
    return deploy_of(made.subgraphs[-1])


def messages(effects: list[Effect], kind: type[Message]) -> list[Message]:
    return [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, kind)]


def some(*numbers: int) -> bytes:
    plan = maker().subgraph.plan
    return encode_rows(plan.columns, [(number, at(number)) for number in numbers])


def test_a_subgraph_is_announced_once_its_streams_are_open():
    host, deploy = Host(), maker()
    opened, timer = host.hear(deploy)
    reads = Reads(columns=("number", "part", "at"), version=1, reader='query "q"')
    name = f"left~1000-1@{NORTH.hex()}"
    plan = deploy.subgraph.plan
    source = sources(plan)[0]
    needs = Needs(1, source.schema, "at", None, (selected(plan, source.alias),))
    command = OpenSubscription(
        stream="left", subscription=name, since=0, reads=reads, places=True, needs=needs, relays=True
    )
    assert opened == Tell(Requested(-1, command))
    assert timer == SetTimer(TICK, TICK_MS)
    announced = Send(PROXY, Deployed(query="q.1", attempt=1, number=1, life=1000))
    assert host.happen(Answered(-1, Opened(subscription="s", stamp=9), last=False)) == [announced]
    assert host.hear(deploy) == [announced], "asked again, it says so again"


def test_what_an_engine_runs_is_announced_once_the_engine_has_started():
    host = Host(peer=PROXY)
    deploy = last(JOIN)
    effects = host.hear(deploy)
    assert [each.run for each in effects if isinstance(each, StartRun)] == ["q.1.0~1"]
    assert host.serve(-1, LEFT) == []
    assert host.serve(-2, RIGHT) == []
    early = Rows(batches=(numbered(LEFT, 0, 1),))
    assert host.happen(Answered(-1, early, last=False)) == [], "kept until the engine takes rows"
    announced, fed = host.happen(RunStarted("q.1.0~1"))
    assert announced == Tell(Received(PROXY, Deployed(query="q.1", attempt=1, number=0, life=1000)))
    assert isinstance(fed, FeedRun)


def test_a_status_tells_how_much_state_an_engine_keeps():
    host = Host(peer=PROXY)
    host.open(last(JOIN))
    host.happen(RunStarted("q.1.0~1"))

    def told() -> list[int | None]:
        said = [
            each.event.message
            for each in host.tick(STATUS_MS)
            if isinstance(each, Tell) and isinstance(each.event, Received)
        ]
        return [each.state_rows for each in said if isinstance(each, SubgraphStatus)]

    assert told() == [None], "it has not counted yet"
    assert host.happen(RunState("q.1.0~1", 17)) == []
    assert told() == [17]


@pytest.mark.parametrize("what", ["without Spark", "has state", "inputs"])
def test_what_cannot_run_here_is_refused(what: str):
    host = Host(peer=PROXY)
    subgraph = last(JOIN).subgraph
    if what == "without Spark":
        host.executor.has_spark = False
    else:
        changes = {"engine": Inline()} if what == "has state" else {"inputs": (FlowInput("x", 1),)}
        subgraph = type(subgraph)(
            **{name: changes.get(name, getattr(subgraph, name)) for name in subgraph.__struct_fields__}
        )
    (refused,) = host.hear(deploy_of(subgraph))
    assert isinstance(refused, Tell)
    assert isinstance(refused.event, Received)
    assert isinstance(refused.event.message, DeployRefused)
    assert what in refused.event.message.reason
    assert host.executor.hosted == {}


def test_rows_flow_to_the_consumer_until_it_has_them():
    host = Host()
    (request,) = host.open(deploy_of(msgspec.structs.replace(maker().subgraph, is_timed=True)))
    assert host.happen(Answered(request, Publishers(origins=(LEFT,)), last=False)) == []
    effects = host.happen(Answered(request, Rows(batches=(batch(LEFT, 0, (5, 1, at(5))),)), last=False))
    covers = (reach("left", LEFT, 1),)
    progress = Progress(covers, covers, 5_000_000, 5_000_000)
    sent = Flow(
        query="q.1",
        attempt=1,
        subgraph=1,
        life=1000,
        sequence=0,
        rows=some(5),
        count=1,
        is_new=True,
        progress=progress,
        is_whole=True,
    )
    assert messages(effects, Flow) == [sent]
    seen = [each.event.command for each in effects if isinstance(each, Tell) and isinstance(each.event, Requested)]
    assert [type(each) for each in seen] == [Seen]
    assert sent in messages(host.tick(RESEND_MS), Flow), "lost on the way, it goes again"
    host.happen(Answered(request, Silent(silence=silence(LEFT, 1)), last=False))
    (said,) = messages(host.tick(TIMED_MS), Flow)
    assert (said.sequence, said.count, said.progress.is_idle) == (1, 0, True), "the consumer hears that it is silent"
    host.hear(Flowed(query="q.1", attempt=1, subgraph=1, sequence=2))
    assert messages(host.tick(RESEND_MS), Flow) == []


def test_a_large_flow_goes_in_parts_of_which_the_last_alone_says_what_it_covers():
    count = 2000
    text = "SELECT number, at FROM left WHERE part = 1"
    host = Host()
    (request,) = host.open(deploy_of(cut_of(text, publishers=PUBLISHERS).subgraphs[0]))
    rows = [(1 << 60, 1, at(number)) for number in range(count)]
    batches = tuple(batch(LEFT, place, *rows) for place in range(0, count * 8, count))
    flows = messages(host.happen(Answered(request, Rows(batches=batches), last=False)), Flow)
    assert all(isinstance(each, Flow) and len(each.rows) <= FLOW_BYTES for each in flows)
    assert sum(each.count for each in flows if isinstance(each, Flow)) == count * 8
    for each in flows:
        assert isinstance(each, Flow)
        assert each.is_whole == bool(each.progress.covers)


def test_what_one_event_has_no_time_for_is_done_by_the_next():
    """A batch concerns many subgraphs: the loop is free between two portions of the work."""
    host, count = Host(), WORK_MAX + 50
    for number in range(count):
        deploy = msgspec.structs.replace(maker(), query=f"q{number}.1")
        for each in host.hear(deploy):
            if isinstance(each, Tell) and isinstance(each.event, Requested):
                request = each.event.request
    host.serve(request, LEFT)
    if host.executor._due:
        host.happen(TimerFired(MORE))
    rows = Rows(batches=(batch(LEFT, 0, (5, 1, at(5))),))
    effects = host.happen(Answered(request, rows, last=False))
    assert len(messages(effects, Flow)) == WORK_MAX
    assert SetTimer(MORE, 0) in effects
    effects = host.happen(TimerFired(MORE))
    assert len(messages(effects, Flow)) == 50
    assert SetTimer(MORE, 0) not in effects


def test_a_consumer_that_is_slow_holds_the_stream_back():
    host = Host()
    (request,) = host.open(maker())
    for place in range(IN_FLIGHT_MAX + 1):
        effects = host.happen(Answered(request, Rows(batches=(numbered(LEFT, place, 1),)), last=False))
    assert not [each for each in effects if isinstance(each, Tell)], "nothing is said to be seen"
    (seen,) = host.hear(Flowed(query="q.1", attempt=1, subgraph=1, sequence=10))
    assert isinstance(seen, Tell)


def consumer() -> Host:
    host = Host(peer=PROXY)
    host.open(last(SELECT, publishers=PUBLISHERS))
    return host


def flowing(sequence: int, *, life: int = 5, attempt: int = 1) -> Flow:
    return Flow(
        query="q.1",
        attempt=attempt,
        subgraph=1,
        life=life,
        sequence=sequence,
        rows=some(sequence),
        count=1,
        is_new=True,
        progress=Progress((reach("left", LEFT, sequence + 1),), (reach("left", LEFT, sequence + 1),)),
        is_whole=True,
    )


def results(effects: list[Effect]) -> list[object]:
    ready = [each.event for each in effects if isinstance(each, Tell) and isinstance(each.event, ResultsReady)]
    return [row for each in ready for row in each.rows]


def test_flows_are_taken_once_and_in_order():
    host = consumer()
    assert host.happen(Received(NORTH, flowing(1))) == [], "the first is missing: both will come again"
    effects = host.happen(Received(NORTH, flowing(0)))
    assert results(effects) == [(0,)]
    assert messages(host.tick(FLOWED_MS), Flowed) == [Flowed(query="q.1", attempt=1, subgraph=1, sequence=1)]
    assert messages(host.tick(FLOWED_MS), Flowed) == [], "once"
    again = host.happen(Received(NORTH, flowing(0)))
    assert again == [Send(NORTH, Flowed(query="q.1", attempt=1, subgraph=1, sequence=1))]
    assert results(host.happen(Received(NORTH, flowing(1)))) == [(1,)]
    assert host.happen(Received(NORTH, flowing(2, attempt=2))) == [], "of another attempt"


def test_a_flow_of_a_host_that_began_anew_ends_the_attempt():
    host = consumer()
    host.happen(Received(NORTH, flowing(0)))
    effects = host.happen(Received(NORTH, flowing(1, life=6)))
    (refused,) = (each.event.message for each in effects if isinstance(each, Tell) and isinstance(each.event, Received))
    assert isinstance(refused, DeployRefused)
    assert "began anew" in refused.reason
    assert host.executor.hosted == {}


def test_results_that_are_not_safe_hold_the_flow_back():
    host = consumer()
    for sequence in range(IN_FLIGHT_MAX + 1):
        effects = host.happen(Received(NORTH, flowing(sequence)))
    assert FLOWED_MAX < IN_FLIGHT_MAX
    assert messages(effects, Flowed) == []
    assert host.happen(ResultsSafe("q.1", 1)) == []
    assert messages(host.tick(FLOWED_MS), Flowed) == [
        Flowed(query="q.1", attempt=1, subgraph=1, sequence=IN_FLIGHT_MAX + 1)
    ]


def test_a_query_without_results_says_how_far_it_is_all_the_same():
    host = Host(peer=PROXY)
    (request,) = host.open(last(SELECT))
    host.happen(Answered(request, Rows(batches=(numbered(LEFT, 0, 3, part=0),)), last=False))
    said = [each.event for each in host.tick(1000) if isinstance(each, Tell) and isinstance(each.event, ResultsReady)]
    assert [(each.rows, each.progress.covers) for each in said if each.progress is not None] == [
        ((), (reach("left", LEFT, 3),))
    ]
    assert not results(host.tick(1000))


def test_rows_that_are_gone_do_not_end_the_attempt():
    host = Host(peer=PROXY)
    (request,) = host.open(last(SELECT))
    effects = host.happen(Answered(request, Missed(origin=LEFT, first=0, next=4), last=False))
    assert [each.event.command.positions[0].next for each in effects if isinstance(each, Tell)] == [4]  # type: ignore[attr-defined]
    assert results(host.happen(Answered(request, Rows(batches=(numbered(LEFT, 4, 1),)), last=False))) == [(4,)]


@pytest.mark.parametrize("how", ["undeployed", "lease", "engine", "stream", "next attempt"])
def test_what_is_over_leaves_nothing_behind(how: str):
    host = Host(peer=WORKER)
    deploy = deploy_of(next(each for each in cut_of(JOIN, worker=WORKER).subgraphs if each.number == 1))
    requests = host.open(deploy)
    host.happen(RunStarted(THEIRS))
    host.happen(Answered(requests[0], Rows(batches=(numbered(LEFT, 0, 2),)), last=False))
    match how:
        case "undeployed":
            effects = host.hear(Undeploy(query="q.1", attempt=1))
        case "lease":
            effects = host.tick(LEASE_MS + 1)
        case "engine":
            effects = host.happen(RunFailed(THEIRS, "it died"))
        case "stream":
            dropped = Refused(code="unknown", error="dropped")
            _, asked = host.happen(Answered(requests[1], dropped, last=True))
            assert isinstance(asked, Tell)
            assert isinstance(asked.event, Requested), "it asks for itself"
            effects = host.happen(Answered(asked.event.request, dropped, last=True))
            requests = [requests[0], asked.event.request]
        case _:
            host.executor.has_spark = False  # So that it is not taken in again.
            effects = host.hear(deploy_of(deploy.subgraph, attempt=2))
    assert [each for each in effects if isinstance(each, StopRun)] == [StopRun(THEIRS)]
    assert host.executor.hosted == {}
    gone = [each.event for each in effects if isinstance(each, Tell) and isinstance(each.event, Abandoned)]
    assert sorted(each.request for each in gone if each.request in requests) == sorted(requests)
    assert host.inside.roles == {}, "no question is waited for"
    assert host.happen(RunResults(THEIRS, 1, ())) == []
    assert host.tick() == [], "and no timer goes on"


def test_a_lease_of_this_attempt_keeps_it():
    host = Host()
    host.open(maker())
    host.now += LEASE_MS - 1
    host.hear(Lease(query="q.1", attempt=1))
    assert messages(host.tick(2), SubgraphStatus)
    host.hear(Lease(query="q.1", attempt=9))
    host.tick(LEASE_MS + 1)
    assert host.executor.hosted == {}


def test_rows_that_were_kept_for_the_engine_and_cannot_be_read_end_the_attempt_once():
    host = Host(peer=PROXY)
    host.open(last(JOIN, sharing="off"))
    for place in range(2):
        broken = Batch(LEFT, place, 1, numbered(LEFT, 0, 1).published_at, b"\x91\x91\xa1x")
        host.happen(Answered(-1, Rows(batches=(broken,)), last=False))
    effects = host.happen(RunStarted("q.1.0~1"))
    refusals = [
        each
        for each in effects
        if isinstance(each, Tell) and isinstance(each.event, Received) and isinstance(each.event.message, DeployRefused)
    ]
    assert len(refusals) == 1
