"""Who owns a key, and whose word on it counts while peers come and go."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.ids import Key, PeerId, distance
from protocols.store.limits import StoreLimits
from protocols.store.messages import Sighting
from protocols.store.neighbourhood import Neighbourhood
from tests.seeds import draw_seed

LIMITS = StoreLimits()
START = 1_000_000
NOW = START + LIMITS.settle_ms
KEY = Key(bytes(20))


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(20, "big"))


A, B, C, D, E, F, G = (peer(number) for number in range(1, 8))  # In the order of their distance from KEY.


def around(me: PeerId, *others: PeerId) -> Neighbourhood:
    """A neighbourhood that has settled."""
    neighbourhood = Neighbourhood(me, LIMITS)
    neighbourhood.start(START)
    for each in others:
        neighbourhood.up(each, START)
        neighbourhood.met(each)
    return neighbourhood


@given(
    st.lists(st.binary(min_size=20, max_size=20), min_size=1, max_size=12, unique=True),
    st.binary(min_size=20, max_size=20),
)
def test_the_owners_of_a_key_are_the_three_nearest_as_every_peer_sees_it(raws: list[bytes], raw_key: bytes):
    peers, key = [PeerId(raw) for raw in raws], Key(raw_key)
    expected = sorted(peers, key=lambda each: distance(each, key))[:3]
    for me in peers:
        neighbourhood = around(me, *(each for each in peers if each != me))
        assert neighbourhood.owners(key) == expected
        assert neighbourhood.is_owner(key) == (me in expected)
        for other in peers:
            both = neighbourhood.both_own(other, neighbourhood.others)(key)
            assert both == (me in expected and other in expected)
        neighbourhood.validate()


def test_hearsay_counts_for_one_question():
    assert around(B, C, D).owners(KEY, [A]) == [A, B, C]
    assert around(B, C, D).owners(KEY) == [B, C, D]


def test_a_peer_that_starts_answers_once_it_has_caught_up_with_the_three_others_nearest_to_the_key():
    neighbourhood = Neighbourhood(A, LIMITS)
    neighbourhood.start(START)
    for each in (B, C, D, E):
        neighbourhood.up(each, START)
    for each in (B, C):
        neighbourhood.met(each)
    assert not neighbourhood.answers_for(KEY, NOW)
    neighbourhood.met(D)  # No owner, but it may believe to be one until it has heard from us.
    assert neighbourhood.answers_for(KEY, NOW)
    assert not neighbourhood.answers_for(KEY, NOW - 1)


def starting(me: PeerId, *others: PeerId, remembered: tuple[PeerId, ...] | None = None) -> Neighbourhood:
    """A neighbourhood of a peer that is back, or new, and has not compared with anybody yet."""
    neighbourhood = Neighbourhood(me, LIMITS, remembered)
    neighbourhood.start(START)
    for each in others:
        neighbourhood.up(each, START)
    return neighbourhood


def test_a_peer_that_went_before_we_had_caught_up_with_it_is_missed_until_it_is_back_or_has_faded():
    neighbourhood = starting(A, B, C, D)
    neighbourhood.down(B, START + 1)
    for each in (C, D):
        neighbourhood.met(each)
    assert not neighbourhood.answers_for(KEY, NOW)
    neighbourhood.up(B, NOW)
    assert not neighbourhood.answers_for(KEY, NOW)
    neighbourhood.met(B)
    assert neighbourhood.answers_for(KEY, NOW)
    neighbourhood.validate()


def test_an_heir_catches_up_again_when_one_goes_that_it_never_caught_up_with():
    neighbourhood = starting(D, A, B, C, remembered=(A, B, C))
    for each in (B, C):
        neighbourhood.met(each)
    neighbourhood.down(A, NOW)
    assert not neighbourhood.answers_for(KEY, NOW)
    for each in (B, C):
        neighbourhood.met(each)
    assert neighbourhood.answers_for(KEY, NOW)


@pytest.mark.parametrize(("remembered", "answers"), [((B, C, D), True), ((B, C, D, E), True), (None, False)])
def test_a_peer_that_has_its_disk_can_do_without_one_of_the_others(remembered: tuple[PeerId, ...], answers: bool):
    neighbourhood = starting(A, C, D, remembered=remembered)
    neighbourhood.told([Sighting(B, LIMITS.ghost_ms, False)], START)
    for each in (C, D):
        neighbourhood.met(each)
    assert neighbourhood.answers_for(KEY, NOW) == answers
    neighbourhood.fade(START + LIMITS.ghost_ms)
    assert neighbourhood.answers_for(KEY, START + LIMITS.ghost_ms)


def test_a_peer_that_is_back_does_not_answer_while_two_that_it_remembers_are_away():
    neighbourhood = starting(A, D, E, remembered=(B, C, D, E))
    for each in (D, E):
        neighbourhood.met(each)
    assert not neighbourhood.answers_for(KEY, NOW)


def test_a_newcomer_is_told_whom_to_miss():
    neighbourhood = starting(A, D, E, F)
    told = [Sighting(B, 5_000, False), Sighting(A, 0, False), Sighting(D, 0, True)]
    neighbourhood.told(told, START)
    for each in (D, E, F):
        neighbourhood.met(each)
    assert not neighbourhood.answers_for(KEY, NOW)
    assert neighbourhood.sightings(NOW)[-1] == Sighting(B, 5_000 - LIMITS.settle_ms, True)
    neighbourhood.fade(START + 5_000)
    assert neighbourhood.answers_for(KEY, START + 5_000)


def test_who_has_started_misses_nobody_by_hearsay():
    neighbourhood = around(A, C, D, E)
    neighbourhood.told([Sighting(B, 5_000, False)], NOW)
    assert neighbourhood.answers_for(KEY, NOW)


def test_an_heir_does_not_count_the_word_of_one_that_has_not_caught_up():
    neighbourhood = around(D, A, B, C, E)
    neighbourhood.down(C, NOW)
    neighbourhood.met(A)
    neighbourhood.met(B, doubts=(Sighting(C, 0, True),))
    assert not neighbourhood.answers_for(KEY, NOW)
    neighbourhood.met(B, doubts=(Sighting(G, 0, True),))  # Too far from the key to matter.
    assert neighbourhood.answers_for(KEY, NOW)


def test_a_newcomer_does_not_silence_a_peer_that_has_settled():
    neighbourhood = around(A, B, C)
    neighbourhood.up(D, NOW)
    assert neighbourhood.answers_for(KEY, NOW)


def test_a_peer_does_not_answer_for_what_others_own():
    assert not around(D, A, B, C).answers_for(KEY, NOW)


def test_an_owner_goes_on_answering_when_another_goes():
    neighbourhood = around(A, B, C, D)
    neighbourhood.down(C, NOW)
    assert neighbourhood.answers_for(KEY, NOW)


def test_an_heir_answers_once_it_has_caught_up_with_two_of_the_former_owners():
    neighbourhood = around(D, A, B, C, E)
    neighbourhood.down(C, NOW)
    assert neighbourhood.is_owner(KEY)
    assert not neighbourhood.answers_for(KEY, NOW)
    neighbourhood.met(A)
    neighbourhood.met(E)
    assert not neighbourhood.answers_for(KEY, NOW)
    neighbourhood.met(B)
    assert neighbourhood.answers_for(KEY, NOW)


def test_an_heir_stays_one_when_the_next_owner_goes():
    neighbourhood = around(D, A, B, C, E)
    neighbourhood.down(C, NOW)
    neighbourhood.met(A)
    neighbourhood.met(B)
    neighbourhood.down(B, NOW + 1)
    assert neighbourhood.answers_for(KEY, NOW + 1)


@pytest.mark.parametrize("me", [D, E, F])
def test_heirs_cut_off_from_the_owners_do_not_answer_until_the_ghosts_have_faded(me: PeerId):
    """However many heirs there are, and whoever else left: they know no more together than each alone."""
    heirs = [each for each in (D, E, F) if each != me]
    neighbourhood = around(me, A, B, C, G, *heirs)
    for each in (C, A, B, G):
        neighbourhood.down(each, NOW)
    for each in heirs:
        neighbourhood.met(each)
    assert not neighbourhood.answers_for(KEY, NOW)
    neighbourhood.fade(NOW + LIMITS.ghost_ms - 1)
    assert not neighbourhood.answers_for(KEY, NOW + LIMITS.ghost_ms - 1)
    neighbourhood.fade(NOW + LIMITS.ghost_ms)
    assert neighbourhood.answers_for(KEY, NOW + LIMITS.ghost_ms)


def test_a_ghost_that_comes_back_takes_its_place_again():
    neighbourhood = around(D, A, B, C)
    neighbourhood.down(C, NOW)
    neighbourhood.met(A)
    neighbourhood.met(B)
    neighbourhood.up(C, NOW)
    assert not neighbourhood.is_owner(KEY)
    neighbourhood.validate()


def test_a_peer_that_was_heard_is_a_neighbour_for_a_while():
    neighbourhood = around(D, A, B)
    assert neighbourhood.hear(C, NOW)
    assert not neighbourhood.hear(C, NOW + 1)
    assert not neighbourhood.is_owner(KEY)
    assert not neighbourhood.fade(NOW + LIMITS.heard_ms)
    assert neighbourhood.fade(NOW + LIMITS.heard_ms + 1)
    assert neighbourhood.is_owner(KEY)


@pytest.mark.parametrize(("has_company", "after_ms"), [(False, LIMITS.settle_ms), (True, LIMITS.ghost_ms)])
def test_a_peer_that_nobody_joins_is_alone_in_the_end(has_company: bool, after_ms: int):
    neighbourhood = Neighbourhood(A, LIMITS, (B,) if has_company else ())
    neighbourhood.start(START)
    assert (neighbourhood.is_alone(START + after_ms - 1), neighbourhood.needed(START + after_ms - 1)) == (False, 2)
    assert (neighbourhood.is_alone(START + after_ms), neighbourhood.needed(START + after_ms)) == (True, 1)
    neighbourhood.up(B, START + after_ms)
    assert neighbourhood.needed(START + after_ms) == 2


def test_what_it_remembers_of_keys_is_what_it_would_find_anew():
    rng = random.Random(draw_seed())
    others = [PeerId(rng.randbytes(20)) for _ in range(9)]
    keys = [Key(rng.randbytes(20)) for _ in range(8)]
    here, now = around(PeerId(rng.randbytes(20)), *others[:5]), NOW
    for step in range(400):
        other, now = rng.choice(others), now + rng.randrange(3_000)
        doubts = (Sighting(rng.choice(others), rng.choice((0, 500)), rng.random() < 0.5),)
        match rng.choice(("up", "down", "leaves", "done", "hear", "met", "doubts", "fade", "told")):
            case "leaves":
                here.leaves(other, now)
            case "done":
                here.leaves(other, now, is_done=True)
            case "doubts":
                here.met(other, doubts)
            case "met":
                here.met(other)
            case "fade":
                here.fade(now)
            case "told":
                here.told(doubts, now)
            case name:
                getattr(here, name)(other, now)
        anew = copy.deepcopy(here)
        for known in (anew._owned, anew._owners, anew._caught_up):
            known.clear()
        for key in keys:
            assert here.owners(key) == anew.owners(key), step  # It remembers since an earlier step, unless it forgot.
            assert here.is_owner(key) == anew.is_owner(key), step
            assert here.answers_for(key, now) == anew.answers_for(key, now), step
