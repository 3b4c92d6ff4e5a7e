"""Streams between subgraphs in the catalogue: stated while a query runs, with their rate, and withdrawn at its end."""

from __future__ import annotations

from protocols.catalogue.events import DerivedEntry
from protocols.catalogue.messages import DerivedListed, ListDerived
from protocols.execution.attempt import Attempt
from protocols.execution.derived import LIFE_MS, RENEW_MS, DerivedStreams
from protocols.subgraphs import Progress, SubgraphStatus
from tests.protocols.execution.parts import JOIN, NORTH, PUBLISHERS, SOUTH, WORKER, cut_of
from tests.protocols.lone import Lone


def listed(lone: Lone) -> tuple[DerivedEntry, ...]:
    answer = lone.answer(ListDerived())
    assert isinstance(answer, DerivedListed)
    return answer.streams


def settled() -> Lone:
    """A peer that is sure to be alone: others are waited for no longer."""
    lone = Lone()
    assert listed(lone) == ()
    return lone


def running() -> Attempt:
    return Attempt("q.7", 1, cut_of(JOIN, worker=WORKER, publishers=PUBLISHERS), Progress(), 0)


def test_derived_streams_are_listed_while_their_query_runs():
    lone, attempt = settled(), running()
    derived = DerivedStreams(lone.peer.catalogue, ("queries", "derived"))
    lone.perform(derived.renew(attempt, lone.now))
    lone.commit()
    found = {each.number: each for each in listed(lone)}
    assert {number: each.name for number, each in found.items()} == {
        each.number: each.derived for each in attempt.cut.subgraphs if each.derived
    }
    assert {each.host for each in found.values()} == {NORTH, SOUTH, WORKER}
    assert str(found[1].schema) == "number int, other int"
    assert derived.renew(attempt, lone.now + RENEW_MS - 1) == [], "not at every tick"
    lone.now += RENEW_MS
    attempt.status[1] = SubgraphStatus(
        query=attempt.query,
        attempt=1,
        number=1,
        life=1,
        rows_in=0,
        rows_out=1000,
        waiting=0,
        inputs=(),
        progress=Progress(),
    )
    lone.perform(derived.renew(attempt, lone.now))
    lone.commit()
    (rate,) = [each.rate_per_s for each in listed(lone) if each.number == 1]
    assert 50 <= rate <= 200, "1000 in 10 s, of which the latest count more"
    lone.perform(derived.withdraw(attempt, lone.now))
    lone.commit()
    assert listed(lone) == ()
    assert derived.withdraw(attempt, lone.now) == [], "nothing is left to withdraw"


def test_what_nobody_renews_expires():
    lone, attempt = settled(), running()
    lone.perform(DerivedStreams(lone.peer.catalogue, ("queries", "derived")).renew(attempt, lone.now))
    lone.commit()
    assert len(listed(lone)) == 3
    lone.wait(LIFE_MS + 1)
    assert listed(lone) == ()
