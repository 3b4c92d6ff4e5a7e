"""Who a host lets in: what a subgraph needs against what is free; and a host that hosts nothing for others."""

from __future__ import annotations

import msgspec
import pytest

from protocols.delivery.messages import Opened
from protocols.demand import HOSTING, Demand, Lack, Traffic
from protocols.effects import Effect, Send
from protocols.errors import RemoteProtocolError
from protocols.events import Answered
from protocols.execution.admission import NO_ROOM, UseMeasured
from protocols.sharing.capacity import MEASURED_AFTER_MS, Capacities, Capacity, Use
from protocols.subgraphs import Deploy, Deployed, DeployRefused, Prepare, Prepared, Undeploy
from tests.protocols.execution.parts import JOIN, NORTH, PROXY, PUBLISHERS, SELECT, WINDOWS, Host, cut_of, deploy_of

DEMAND = Demand((Traffic(100.0, 0.0),), Traffic(50.0, 4000.0))
NARROW = cut_of(SELECT, publishers=PUBLISHERS).subgraphs[0]


def asking(
    query: str = "q.1", *, attempt: int = 1, is_accepted: bool = False, demand: Demand | None = DEMAND
) -> Deploy:
    deploy = deploy_of(NARROW, attempt=attempt)
    return msgspec.structs.replace(deploy, query=query, demand=demand, is_accepted=is_accepted)


def small(**allowed: object) -> Host:
    host = Host()
    host.executor.admission.capacity = Capacity(Capacities(**allowed))  # type: ignore[arg-type]
    return host


def refused(query: str, lack: Lack, *, attempt: int = 1, number: int = 1) -> list[Effect]:
    return [Send(PROXY, DeployRefused(query=query, attempt=attempt, number=number, reason=NO_ROOM, lack=lack))]


def is_let_in(effects: list[Effect]) -> bool:
    return not any(isinstance(each, Send) and isinstance(each.message, DeployRefused) for each in effects)


def test_a_subgraph_that_would_overload_a_link_is_refused_with_what_is_lacking():
    host = small(uplink=10_000.0)
    assert is_let_in(host.hear(asking("q.1")))
    assert is_let_in(host.hear(asking("q.2")))
    lack = Lack("uplink", 4000.0, 2000.0, 10_000.0)
    assert host.hear(asking("q.3")) == refused("q.3", lack)
    assert host.hear(asking("q.3")) == refused("q.3", lack), "asked again, it says so again"
    host.hear(Undeploy(query="q.1", attempt=1))
    assert is_let_in(host.hear(asking("q.3")))


def test_one_that_says_nothing_of_its_needs_is_let_in():
    host = small(uplink=10.0)
    assert is_let_in(host.hear(asking(demand=None)))


def test_a_query_that_was_accepted_is_let_in_first_and_counts():
    host = small(uplink=5000.0)
    assert is_let_in(host.hear(asking("q.1", is_accepted=True)))
    assert is_let_in(host.hear(asking("q.2", is_accepted=True)))
    lack = Lack("uplink", 4000.0, 0.0, 5000.0)
    assert host.hear(asking("q.3")) == refused("q.3", lack)


def test_the_next_attempt_takes_the_place_of_the_one_before():
    host = small(uplink=5000.0)
    for attempt in range(1, 5):
        assert is_let_in(host.hear(asking(attempt=attempt)))


def test_a_reservation_ends_once_a_measurement_shows_the_use():
    host = small(uplink=5000.0)
    host.hear(asking("q.1"))
    host.happen(Answered(-1, Opened(subscription="s", stamp=9), last=False))
    host.now += MEASURED_AFTER_MS
    assert host.happen(UseMeasured(Use(0.0, 0.0, 1000.0, 0.0), 0.0)) == []
    uplink = host.executor.admission.capacity.resources["uplink"]
    assert (uplink.reserved, uplink.used) == (0.0, pytest.approx(300.0))


def test_what_runs_is_not_ended_though_more_is_used_than_there_is():
    host = small(cpu_share=0.01)
    host.open(asking())
    for _ in range(30):
        host.now += 1000
        assert host.happen(UseMeasured(Use(9e5, 0.0, 1e9, 1e9), 50.0)) == []
    assert list(host.executor.hosted) == [("q.1", 1)]
    assert not is_let_in(host.hear(asking("q.2")))


def test_a_host_that_hosts_nothing_for_others_says_so():
    host = small(hosts_others=False)
    part = deploy_of(cut_of(WINDOWS, worker=NORTH).subgraphs[0])
    assert host.hear(part) == refused("q.1", Lack(HOSTING), number=part.subgraph.number)
    assert host.hear(asking()) == refused("q.1", Lack(HOSTING)), "it does not publish that stream"
    prepared = Prepared(query="q.1", attempt=1, reason=NO_ROOM)
    assert host.hear(Prepare(query="q.1", attempt=1)) == [Send(PROXY, prepared)]


def test_a_host_that_hosts_nothing_for_others_narrows_its_own_streams_and_runs_its_own_queries():
    host = small(hosts_others=False)
    host.executor.admission.publishes = lambda stream: stream == "left"
    assert is_let_in(host.hear(asking()))
    own = Host(peer=PROXY)
    own.executor.admission.capacity = Capacity(Capacities(hosts_others=False))
    assert is_let_in(own.hear(deploy_of(cut_of(JOIN).subgraphs[-1])))


def test_needs_are_those_of_the_inputs():
    wrong = asking(demand=Demand((), Traffic(1.0, 1.0)))
    with pytest.raises(RemoteProtocolError, match="a demand for other inputs"):
        wrong.check()
    asking().check()


def test_what_is_done_teaches_what_it_costs():
    host = small(cpu_share=1.0, cores=1)
    host.open(asking())
    run = host.executor.hosted["q.1", 1].run
    costs = host.executor.admission.capacity.costs
    before = dict(costs.micros)
    host.now += 1000
    host.happen(UseMeasured(Use(0.0, 0.0, 0.0, 0.0), 0.0))
    run.rows_in["left"] += 100_000
    host.now += 1000
    host.happen(UseMeasured(Use(5e5, 0.0, 0.0, 0.0), 10.0))
    assert costs.micros["select"] > before["select"], "100,000 rows took half a second"
    assert costs.micros["spark"] == before["spark"]


def test_a_deployed_subgraph_says_so_whatever_it_needs():
    host = small(uplink=10_000.0)
    host.open(asking())
    announced = Send(PROXY, Deployed(query="q.1", attempt=1, number=1, life=1000))
    assert host.hear(asking()) == [announced]
