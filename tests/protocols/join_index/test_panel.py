"""Who evaluates: the rewriter where the sides of a query meet says it, and says the same to everyone."""

from __future__ import annotations

import msgspec
import pytest

from protocols.effects import Effect, Route, Send
from protocols.ids import PeerId
from protocols.inside import Inside
from protocols.join_index.keys import attribute_key
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import AskEvaluators, Evaluators, IndexQuery, QueryLost, RemoveQuery
from protocols.join_index.panel import EVALUATORS_MAX, SHUN_MS, Panel
from protocols.join_index.rewriter import Rewriter
from protocols.join_index.subscriber import POSE_MS, Subscriber
from protocols.subgraphs import Undeploy
from tests.protocols.join_index.posing import deployment, looked_up
from tests.protocols.join_index.things import EVALUATOR, PUBLISHER, R_B, REWRITER, S_E, SUBSCRIBER, query

PROXIES = (SUBSCRIBER, PUBLISHER)
MANY = tuple(PeerId.of_public_key(b"many %d" % number) for number in range(2 * EVALUATORS_MAX))


def rewriter(*neighbours: PeerId) -> Rewriter:
    return Rewriter(REWRITER, JoinLimits(), Inside(), lambda: neighbours)


def named(rewriter: Rewriter, *shunned: PeerId, now: int = 0) -> tuple[PeerId, ...]:
    (effect,) = rewriter.name_evaluators(SUBSCRIBER, AskEvaluators(query="q~1", shunned=shunned), now)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Evaluators)
    assert (effect.peer, effect.message.query) == (SUBSCRIBER, "q~1")
    return effect.message.peers


def index(rewriter: Rewriter, name: str, evaluators: tuple[PeerId, ...], proxy: PeerId = SUBSCRIBER) -> None:
    posed = msgspec.structs.replace(query(name=name), subscriber=proxy)
    rewriter.index(proxy, IndexQuery(query=posed, side=0, replica=0, evaluators=evaluators), now=0)


def asking() -> Subscriber:
    """A subscriber that has asked for the evaluators of its query."""
    queries = Subscriber(SUBSCRIBER, Inside(), lambda: (EVALUATOR,))
    assert looked_up(queries, queries.deploy(deployment(), now=0)) == AskEvaluators(query="q~1")
    return queries


def posed(effects: list[Effect]) -> list[tuple[PeerId, ...]]:
    """The evaluators that queries on their way to rewriters name."""
    return [
        each.message.evaluators for each in effects if isinstance(each, Route) and isinstance(each.message, IndexQuery)
    ]


# The rewriter.


def test_two_proxies_that_know_different_peers_share_one_reading():
    here = rewriter(EVALUATOR, *PROXIES)
    for proxy, knows in zip(PROXIES, ((EVALUATOR,), (REWRITER, SUBSCRIBER)), strict=True):
        queries = Subscriber(proxy, Inside(), lambda knows=knows: knows)  # type: ignore[misc]
        question = looked_up(queries, queries.deploy(deployment(), now=0))
        (answer,) = here.name_evaluators(proxy, question, now=0)
        assert isinstance(answer, Send)
        assert isinstance(answer.message, Evaluators)
        evaluators = posed(queries.named(answer.message, now=0))
        assert evaluators == [tuple(sorted((REWRITER, EVALUATOR, *PROXIES)))] * 2
        index(here, f"{proxy.short}~1", evaluators[0], proxy)
    assert len(here.readers) == 1
    here.validate()


def test_evaluators_stay_the_same_while_a_query_uses_them():
    neighbours = [EVALUATOR, SUBSCRIBER]
    here = Rewriter(REWRITER, JoinLimits(), Inside(), lambda: tuple(neighbours))
    before = named(here)
    index(here, "q~1", before)
    neighbours[:] = [SUBSCRIBER, PUBLISHER]
    assert named(here) == before
    here.remove(SUBSCRIBER, RemoveQuery(query="q~1"), now=1)
    assert named(here) == tuple(sorted((REWRITER, SUBSCRIBER, PUBLISHER)))


def test_evaluators_are_named_anew_once_twice_as_many_are_there():
    neighbours = list(MANY[:1])
    here = Rewriter(REWRITER, JoinLimits(), Inside(), lambda: tuple(neighbours))
    before = named(here)
    index(here, "q~1", before)
    neighbours.append(MANY[1])
    assert named(here) == before
    neighbours.append(MANY[2])
    assert named(here) == tuple(sorted((REWRITER, *MANY[:3])))


def test_a_lost_evaluator_is_not_named_again_for_a_while():
    here = rewriter(EVALUATOR, SUBSCRIBER)
    index(here, "q~1", named(here))
    without = tuple(sorted((REWRITER, SUBSCRIBER)))
    assert named(here, EVALUATOR) == without
    assert named(here, now=SHUN_MS - 1) == without, "nor to others"
    assert named(here, now=SHUN_MS) == tuple(sorted((REWRITER, EVALUATOR, SUBSCRIBER)))


def test_a_rewriter_leaves_itself_out_if_others_cannot_reach_it_and_is_alone_if_nobody_else_is_there():
    assert named(rewriter(EVALUATOR), REWRITER) == (EVALUATOR,)
    assert named(rewriter(), REWRITER, EVALUATOR) == (REWRITER,)
    assert named(rewriter()) == (REWRITER,)


def test_a_panel_is_bounded_and_remembers_only_lost_peers_that_it_might_name():
    panel = Panel(REWRITER, lambda: MANY[1:])
    panel.shun(MANY[:3], now=0)
    assert len(panel._shunned) == 2
    assert panel.peers(0, lambda _: False) == tuple(sorted((REWRITER, *MANY[3 : EVALUATORS_MAX + 2])))
    panel.peers(SHUN_MS, lambda _: False)
    assert len(panel._shunned) == 0


# The subscriber.


def test_evaluators_are_asked_for_until_they_are_named_and_the_first_answer_counts():
    queries = asking()
    assert queries.sweep(POSE_MS - 1) == []
    for now in (POSE_MS, 2 * POSE_MS):
        (again,) = queries.sweep(now)
        assert again == Route(attribute_key(S_E), AskEvaluators(query="q~1"))
    effects = queries.named(Evaluators(query="q~1", peers=(EVALUATOR, REWRITER)), now=2 * POSE_MS)
    assert [each.key for each in effects if isinstance(each, Route)] == [attribute_key(R_B), attribute_key(S_E)]
    assert queries.named(Evaluators(query="q~1", peers=(EVALUATOR,)), now=2 * POSE_MS) == []
    assert posed(queries.sweep(3 * POSE_MS)) == [(EVALUATOR, REWRITER)] * 2, "nobody has taken the query yet"


@pytest.mark.parametrize("peers", [(), MANY])
def test_an_answer_that_cannot_be_is_ignored(peers: tuple[PeerId, ...]):
    queries = asking()
    assert queries.named(Evaluators(query="q~1", peers=peers), now=0) == []
    assert queries.sweep(POSE_MS) == [Route(attribute_key(S_E), AskEvaluators(query="q~1"))]


def test_an_answer_after_the_end_of_its_attempt_is_ignored():
    queries = asking()
    assert queries.undeploy(Undeploy(query="q", attempt=1)) == []
    assert queries.named(Evaluators(query="q~1", peers=(EVALUATOR,)), now=0) == []
    assert queries.is_empty()
    queries.validate()


def test_an_answer_to_nothing_that_was_asked_yet_is_ignored():
    queries = Subscriber(SUBSCRIBER, Inside(), lambda: ())
    queries.deploy(deployment(), now=0)
    assert queries.named(Evaluators(query="q~1", peers=(EVALUATOR,)), now=0) == []


def test_the_next_attempt_says_whom_the_last_one_lost():
    queries = asking()
    queries.lost(REWRITER, QueryLost(query="q~1", reason="", culprit=EVALUATOR), now=0)
    question = looked_up(queries, queries.deploy(deployment(2), now=1), now=SHUN_MS - 1)
    assert question == AskEvaluators(query="q~2", shunned=(EVALUATOR,))
    (again,) = queries.sweep(SHUN_MS - 1 + POSE_MS)
    assert again == Route(attribute_key(S_E), AskEvaluators(query="q~2"))
