"""A query whose hosts have no room: the next placement is tried, and a refusal says what was needed and what was free.

refused_room.txt has the texts of refusals; `pytest --rewrite` prints them anew.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from protocols.catalogue.messages import ShowStream
from protocols.catalogue.statistics import StreamStatistics
from protocols.demand import HOSTING, Demand, Lack, Traffic
from protocols.events import Answered, Received
from protocols.execution.admission import NO_ROOM
from protocols.execution.crowded import AVOIDED_MS, TRIES_MAX
from protocols.execution.decision import Decision, Placing, decide
from protocols.execution.messages import QueryAccepted
from protocols.execution.refusals import NoEngine, Short, no_placement, no_room
from protocols.ids import PeerId
from protocols.messages import Refused
from protocols.subgraphs import Deploy, DeployRefused
from queries.query import parse
from tests.protocols.execution.parts import (
    JOIN,
    LINE,
    NORTH,
    ON_SPARK,
    PROXY,
    SOUTH,
    STREAMS,
    WINDOWS,
    WORKER,
    stream,
)
from tests.protocols.execution.proxied import Proxy

GOLDEN = Path(__file__).parent / "refused_room.txt"
UPLINK = Lack("uplink", 14_000.0, 4_750.0, 125_000.0)
IDLE = StreamStatistics(rate_per_s=0.0, row_bytes=100.0, fields=())
CPU = Lack("cpu", 80_000.0, 40_000.0, 200_000.0, 2e6)


def lacks(proxy: Proxy, deploy: Deploy, lack: Lack) -> PeerId:
    """The host of a subgraph has no room for it."""
    host = proxy.host_of(deploy)
    number = deploy.subgraph.number
    said = DeployRefused(query=deploy.query, attempt=deploy.attempt, number=number, reason=NO_ROOM, lack=lack)
    proxy.happen(Received(host, said))
    return host


def refusals(proxy: Proxy) -> list[Refused]:
    return [each for _, each in proxy.replies if isinstance(each, Refused)]


def in_words(refusal: Refused) -> str:
    return f"error: {refusal.error}\ndetail: {refusal.detail}\nhint: {refusal.hint}\n"


def test_a_publisher_without_cpu_has_its_stream_narrowed_where_it_is_read():
    proxy = Proxy()
    _, narrowing = proxy.begin(left=NORTH)
    assert lacks(proxy, narrowing, CPU) == NORTH
    assert refusals(proxy) == []
    (whole,) = proxy.deploys()
    assert (proxy.host_of(whole), len(whole.subgraph.inputs)) == (PROXY, 1)
    proxy.host([whole])
    assert isinstance(proxy.replies[-1][1], QueryAccepted)


def test_a_publisher_without_uplink_has_none_for_all_of_its_rows_either():
    proxy = Proxy()
    _, narrowing = proxy.begin(left=NORTH)
    lacks(proxy, narrowing, UPLINK)
    (refusal,) = refusals(proxy)
    assert refusal.code == "full"
    assert proxy.proxy.queries["q"].state == "ending"


def test_what_has_state_goes_to_the_next_host_and_after_three_more_it_is_refused():
    proxy = Proxy()
    deploys = proxy.begin(ON_SPARK)
    tried = []
    while deploys:
        part = next(each for each in deploys if each.subgraph.engine.name == "spark")
        tried.append(lacks(proxy, part, CPU))
        deploys = proxy.deploys()
    assert sorted(tried) == sorted({PROXY, NORTH, SOUTH, WORKER})
    assert len(tried) == TRIES_MAX
    (refusal,) = refusals(proxy)
    assert refusal.detail.count("CPU has 2 % of 10 % left") == TRIES_MAX


def test_a_host_that_refuses_twice_is_in_every_plan():
    proxy = Proxy()
    making, _ = proxy.begin(left=NORTH)
    assert making.subgraph.number == 0
    lacks(proxy, making, CPU)
    (refusal,) = refusals(proxy)
    assert f"at peer {PROXY.short}" in refusal.detail


def test_a_query_that_was_accepted_goes_on_trying():
    proxy = Proxy()
    deploys = proxy.begin(ON_SPARK)
    proxy.host(deploys)
    (part,) = [each for each in deploys if each.subgraph.engine.name == "spark"]
    assert not part.is_accepted
    full = lacks(proxy, part, Lack(HOSTING))
    proxy.tick(1000)
    proxy.show_streams()
    again = proxy.deploys()
    assert all(each.is_accepted for each in again)
    (part,) = [each for each in again if each.subgraph.engine.name == "spark"]
    assert proxy.host_of(part) != full, "it is avoided"
    assert refusals(proxy) == []
    proxy.now += AVOIDED_MS
    query = proxy.proxy.queries["q"]
    query.planning.crowded.forget(proxy.now)
    assert full not in query.planning.crowded


def demands(*publishers: tuple[PeerId, float]) -> tuple[Demand | None, Demand | None]:
    """Of the part that makes the results of a selection, and of the part that narrows its stream at NORTH."""
    proxy = Proxy()
    proxy.submit()
    shown = stream("left", *publishers)
    told = (msgspec.structs.replace(each, statistics=each.statistics or IDLE) for each in shown.publishers)
    for request in proxy.take(ShowStream):
        proxy.asked.pop(request)
        proxy.happen(Answered(request, msgspec.structs.replace(shown, publishers=tuple(told)), last=True))
    deploys = {each.subgraph.number: each for each in proxy.deploys()}
    return deploys[0].demand, deploys[1].demand


def test_a_deploy_says_what_is_expected_to_flow():
    made, narrowing = demands((NORTH, 60.0), (SOUTH, 40.0))
    assert narrowing is not None
    assert made is not None
    assert narrowing.inputs == (Traffic(100.0, 100.0 * 100.0 * 0.4),), "what is published there does not travel"
    assert 0 < narrowing.output.rows < 100.0
    assert made == Demand((narrowing.output,), Traffic(narrowing.output.rows, 0.0)), "results go to the proxy's stream"


def test_nothing_is_expected_of_a_stream_that_is_silent():
    made, narrowing = demands((NORTH, 0.0))
    assert narrowing == made == Demand((Traffic(0.0, 0.0),), Traffic(0.0, 0.0))


def worker(text: str = WINDOWS, engine: str = "spark", **said: object) -> PeerId:
    """Where the work of a query goes that would go to its own peer, or to `WORKER` if that has no engine."""
    seen = msgspec.structs.replace(LINE, **{"engines": (WORKER, SOUTH), **said})
    how = Placing("baseline", streams={"left": stream("left", (NORTH, 1000.0)), "right": stream("right", (SOUTH, 9.0))})
    found = decide(parse(text, STREAMS).plan, how, seen, PROXY, engine, ())
    assert isinstance(found, Decision)
    return found.choice.worker


def test_planners_avoid_peers_that_host_nothing_and_those_that_say_they_are_full():
    assert worker() == WORKER
    assert worker(closed=(WORKER,)) == SOUTH
    assert worker(full=((WORKER, "cpu"),)) == SOUTH
    assert worker(full=((WORKER, "cpu"), (SOUTH, "uplink"))) == WORKER, "that may have changed, and hosts decide"


def test_the_peer_of_a_query_runs_it_though_it_hosts_nothing_for_others():
    assert worker(JOIN, "auto", engines=LINE.peers, closed=LINE.peers) == PROXY


def test_refusals_say_what_was_needed_what_was_free_and_what_would_help(rewrite: bool):
    refused = [
        no_room("q-17", [Short(NORTH, 'Narrowing of "photons"', UPLINK), Short(SOUTH, "Its windows and joins", CPU)]),
        no_room("q-18", [Short(PROXY, "Its results", Lack("core", 1.0, 0.0, 900_000.0, 4e6))]),
        no_room("q-19", [Short(NORTH, "Its windows and joins", Lack("downlink", 1.5e6, 9.0, 1.25e6))]),
        no_room("q-20", [Short(WORKER, "Its windows and joins", Lack(HOSTING))]),
        no_placement("q-21", NoEngine(3, here=False, closed=2)),
    ]
    text = "\n".join(map(in_words, refused))
    if rewrite:
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text
