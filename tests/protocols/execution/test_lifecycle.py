"""The states of a query: which changes there are, and the story they make."""

from __future__ import annotations

from typing import get_args

import pytest

from protocols.errors import LocalProtocolError
from protocols.events import PeerDown, Requested
from protocols.execution.lifecycle import CHANGES, STORY_KEPT, Change, Lifecycle, State
from protocols.execution.messages import QueryShown, ShowQuery
from tests.protocols.execution.parts import NORTH
from tests.protocols.execution.proxied import running


def test_every_state_can_be_reached_and_only_one_is_left_for_good():
    assert set(CHANGES) == set(get_args(State))
    reached = {"starting", *(state for changes in CHANGES.values() for state in changes.values())}
    assert reached == set(CHANGES)
    assert [state for state, changes in CHANGES.items() if not changes] == ["ended"]


@pytest.mark.parametrize("state", CHANGES)
def test_a_change_that_the_table_does_not_have_is_our_mistake(state: State):
    for change in get_args(Change):
        life = Lifecycle(state)
        if change in CHANGES[state]:
            life.change(change, now=5, why="a reason")
            assert (life.state, list(life.story)) == (CHANGES[state][change], [(5, f"it {change}: a reason")])
        else:
            with pytest.raises(LocalProtocolError, match=state):
                life.change(change, now=5)


def test_only_the_latest_of_a_long_story_is_kept():
    life = Lifecycle()
    for number in range(STORY_KEPT + 3):
        life.note(number, "something")
    assert [at for at, _ in life.story] == list(range(3, STORY_KEPT + 3))


def test_the_story_of_a_query_is_shown():
    proxy, _ = running()
    proxy.happen(PeerDown(NORTH))
    proxy.happen(Requested(9, ShowQuery(query="q")))
    shown = proxy.replies[-1][1]
    assert isinstance(shown, QueryShown)
    lost = f"it loses its attempt: peer {NORTH.short} died or left"
    kinds = [what.partition(":")[0] if what != lost else lost for _, what in shown.story]
    deployed = [each for each in kinds if each.startswith("it is deployed at peer ")]
    others = [each for each in kinds if each not in deployed]
    assert others == ["it was submitted", "it runs", lost, "it begins again"]
    assert len(deployed) == 2
