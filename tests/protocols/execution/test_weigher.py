"""What people hear who ask where a query would run."""

from __future__ import annotations

import msgspec

from protocols.catalogue.messages import ListStreams, ShowStream, StreamsListed
from protocols.effects import Reply, Tell
from protocols.events import Abandoned, Answered, Requested
from protocols.execution.messages import QueryWeighed, WeighQuery
from protocols.execution.weigher import Weigher
from protocols.inside import Inside
from protocols.messages import Refused
from protocols.placement.place import ALGORITHMS
from protocols.placement.sight import LookAtNetwork
from tests.protocols.execution.parts import JOIN, NORTH, PROXY, SOUTH
from tests.protocols.execution.test_placing import LINE, stream

STREAMS = {"left": stream("left", (NORTH, 1000.0)), "right": stream("right", (SOUTH, 1000.0))}
LISTED = StreamsListed(streams=tuple(each.definition for each in STREAMS.values()))


def weighed(text: str = JOIN, within_ms: float | None = None) -> QueryWeighed:
    weigher = Weigher(PROXY, Inside())
    assert weigher.handle(Requested(5, WeighQuery(text=text, within_ms=within_ms)), 0) == [
        Tell(Requested(-1, ListStreams()))
    ]
    shows = weigher.handle(Answered(-1, LISTED, last=True), 0)
    assert shows == [Tell(Requested(-2, ShowStream(name="left"))), Tell(Requested(-3, ShowStream(name="right")))]
    assert weigher.handle(Answered(-2, STREAMS["left"], last=True), 0) == []
    assert weigher.handle(Answered(-3, STREAMS["right"], last=True), 0) == [LookAtNetwork("weigh 5", (NORTH, SOUTH))]
    (reply,) = weigher.handle(msgspec.structs.replace(LINE, placement="weigh 5"), 0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, QueryWeighed)
    assert weigher == Weigher(PROXY, weigher.inside)
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
    weigher = Weigher(PROXY, Inside())
    weigher.handle(Requested(5, WeighQuery(text="SELECT nothing FROM nowhere")), 0)
    (reply,) = weigher.handle(Answered(-1, LISTED, last=True), 0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, Refused)
    weigher.handle(Requested(6, WeighQuery(text=JOIN)), 0)
    weigher.handle(Abandoned(6), 0)
    assert weigher.handle(Answered(-2, LISTED, last=True), 0) == []
    assert weigher == Weigher(PROXY, weigher.inside)
