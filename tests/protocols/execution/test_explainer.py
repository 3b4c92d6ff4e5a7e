"""What people hear who ask where a query would run."""

from __future__ import annotations

import msgspec

from protocols.catalogue.messages import ListStreams, ShowStream, StreamsListed
from protocols.clock import HybridClock
from protocols.effects import Reply, Tell
from protocols.events import Abandoned, Answered, Requested
from protocols.execution.explainer import Explainer
from protocols.execution.messages import PlanQuery, QueryPlanned, QueryWeighed, WeighQuery
from protocols.inside import Inside
from protocols.messages import Refused
from protocols.placement.place import ALGORITHMS
from protocols.sight import LookAtNetwork
from tests.protocols.execution.parts import JOIN, LINE, NORTH, PROXY, SELECT, SOUTH, stream

STREAMS = {"left": stream("left", (NORTH, 1000.0)), "right": stream("right", (SOUTH, 1000.0))}
LISTED = StreamsListed(streams=tuple(each.definition for each in STREAMS.values()))


SHOW_LEFT, SHOW_RIGHT = (ShowStream(name=name, exactly=True) for name in ("left", "right"))
UNKNOWN = Refused(code="unknown", error='stream "nowhere" is not known')


def explainer() -> Explainer:
    return Explainer(PROXY, Inside(), HybridClock())


def weighed(text: str = JOIN, within_ms: float | None = None) -> QueryWeighed:
    explaining = explainer()
    shows = explaining.handle(Requested(5, WeighQuery(text=text, within_ms=within_ms)), 0)
    assert shows == [Tell(Requested(-1, SHOW_LEFT)), Tell(Requested(-2, SHOW_RIGHT))]
    assert explaining.handle(Answered(-1, STREAMS["left"], last=True), 0) == []
    assert explaining.handle(Answered(-2, STREAMS["right"], last=True), 0) == [
        LookAtNetwork("explain 5", (NORTH, SOUTH))
    ]
    (reply,) = explaining.handle(msgspec.structs.replace(LINE, placement="explain 5"), 0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, QueryWeighed)
    assert not explaining._open
    assert not explaining.planner.questions._asked
    return reply.answer


def test_every_placement_is_weighed_and_the_one_that_would_run_is_named():
    answer = weighed()
    assert [each.algorithm for each in answer.options] == list(ALGORITHMS)
    costs = {each.algorithm: each.cost for each in answer.options}
    assert all(cost is not None and cost >= costs["exact"] for cost in costs.values())
    assert costs["baseline"] > costs["exact"]
    assert {each.part: each.host for each in answer.chosen}["work"] in (NORTH, SOUTH)
    assert answer.why.startswith("exact: ")
    assert answer.peers == 4


def test_a_bound_that_cannot_be_kept_leaves_no_placement():
    answer = weighed(within_ms=10.0)
    assert answer.chosen == ()
    assert all(each.cost is None and each.parts == () for each in answer.options)


def test_a_text_that_means_nothing_is_refused_and_a_client_that_goes_is_forgotten():
    explaining = explainer()
    explaining.handle(Requested(5, WeighQuery(text="SELECT nothing FROM nowhere")), 0)
    listed = explaining.handle(Answered(-1, UNKNOWN, last=True), 0)
    assert listed == [Tell(Requested(-2, ListStreams()))], "the text may name its streams in another way"
    (reply,) = explaining.handle(Answered(-2, LISTED, last=True), 0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, Refused)
    explaining.handle(Requested(6, WeighQuery(text=JOIN)), 0)
    explaining.handle(Abandoned(6), 0)
    for request, name in ((-3, "left"), (-4, "right")):
        assert explaining.handle(Answered(request, STREAMS[name], last=True), 0) == []
    assert not explaining._open
    assert not explaining.planner.questions._asked


def test_who_would_run_a_query_is_told_and_forgotten():
    explaining = explainer()
    explaining.handle(Requested(1, PlanQuery(text=SELECT)), 0)
    looks = explaining.handle(Answered(-1, STREAMS["left"], last=True), 0)
    assert looks == [LookAtNetwork("explain 1", (NORTH,))], "no stream of results is made, nobody is sent anything"
    (reply,) = explaining.handle(msgspec.structs.replace(LINE, placement="explain 1"), 0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, QueryPlanned)
    assert (reply.request, [each.host for each in reply.answer.subgraphs]) == (1, [NORTH, PROXY])
    assert (explaining._open, explaining.planner.questions._asked) == ({}, {})
