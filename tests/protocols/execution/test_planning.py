"""Where a proxy has its queries run, by hand: coordinators, bounds, and peers that were lost."""

from __future__ import annotations

from protocols.catalogue.messages import (
    ShowStream,
)
from protocols.events import (
    PeerDown,
    Requested,
)
from protocols.execution.decision import SETTLED_MS
from protocols.execution.messages import (
    SubmitQuery,
)
from protocols.execution.planning import PLACED_WITHIN_MS, SHUN_MS
from protocols.ids import PeerId
from protocols.messages import Refused
from protocols.placement.events import OperatorsPlaced
from tests.protocols.execution.parts import JOIN, NORTH, PROXY, SELECT, SOUTH, WORKER
from tests.protocols.execution.proxied import Proxy, running


def test_peers_lost_long_ago_are_forgotten():
    proxy, _ = running()
    for number in range(50):
        proxy.happen(PeerDown(PeerId(bytes([number]) * 20)))
        proxy.now += SHUN_MS
    assert len(proxy.proxy.planner.lost) == 1


def test_coordinators_place_what_asks_for_their_algorithms():
    proxy = Proxy()
    asked = proxy.begin_placed("in-network")
    assert asked is not None
    assert asked.terms.candidates == asked.terms.peers
    assert not proxy.deploys()
    work = next(number for number, vertex in enumerate(asked.vertices) if vertex.name == "work")
    hosts = [vertex.peer or PROXY for vertex in asked.vertices]
    hosts[work] = SOUTH
    proxy.happen(OperatorsPlaced(asked.placement, asked.attempt - 1, tuple(hosts)))  # Of another attempt.
    assert not proxy.deploys()
    proxy.happen(OperatorsPlaced(asked.placement, asked.attempt, tuple(hosts)))
    proxy.happen(OperatorsPlaced(asked.placement, asked.attempt, tuple(hosts)))
    assert proxy.proxy.queries["q"].planning.placing.choice.worker == SOUTH
    assert 1 in [each.subgraph.number for each in proxy.deploys()]


def test_what_has_no_state_begins_before_its_coordinators_have_agreed():
    proxy = Proxy()
    proxy.happen(Requested(7, SubmitQuery(text=SELECT, name="q", placement="in-network")))
    proxy.show_streams(left=NORTH)
    asked = proxy.coordinated
    assert asked is not None
    deploys = proxy.deploys()
    assert [each.subgraph.number for each in deploys] == [0, 1]
    query = proxy.proxy.queries["q"]
    for hosts in ([PROXY, PROXY, PROXY], [NORTH, NORTH, PROXY]):  # Others than ours, then the same.
        assert not query.planning.placing.is_by_coordinators
        query.planning.ask_coordinators(query.planning.asked.decision, asked.attempt, proxy.now)
        proxy.happen(OperatorsPlaced(asked.placement, asked.attempt, tuple(hosts)))
    assert query.planning.placing.is_by_coordinators
    assert (proxy.deploys(), query.attempt.number) == ([], deploys[0].attempt)


def test_coordinators_that_take_too_long_are_not_waited_for():
    proxy = Proxy()
    asked = proxy.begin_placed("edge")
    assert asked is not None
    assert asked.terms.distances == ()  # Edge does not look at them.
    proxy.tick(PLACED_WITHIN_MS)
    deploys = proxy.deploys()
    assert deploys
    late = tuple(vertex.peer or WORKER for vertex in asked.vertices)
    proxy.happen(OperatorsPlaced(asked.placement, asked.attempt, late))
    assert not proxy.deploys()


def test_a_running_query_is_weighed_again_and_stays_where_it_is_if_nothing_has_changed():
    proxy = Proxy()
    assert proxy.begin_placed("exact") is None
    deploys = proxy.deploys()
    proxy.host(deploys)
    proxy.wait(SETTLED_MS, deploys)
    assert len(proxy.take(ShowStream)) == 2
    proxy.show_streams(left=NORTH, right=SOUTH)
    assert proxy.proxy.queries["q"].state == "running"
    assert not proxy.deploys()


def test_a_bound_that_cannot_be_kept_is_refused():
    proxy = Proxy()
    proxy.happen(Requested(7, SubmitQuery(text=JOIN, name="q", within_ms=5.0)))
    proxy.show_streams(left=NORTH, right=SOUTH)
    proxy.create()
    ((_, refusal),) = proxy.replies
    assert isinstance(refusal, Refused)
    assert refusal.error == 'query "q" cannot have its results within 5 ms'
