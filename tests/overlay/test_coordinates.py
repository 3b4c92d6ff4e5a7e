"""Vivaldi: after a few hundred round trips, coordinates predict the distance between peers that never met."""

from __future__ import annotations

import math
import random
import statistics

from overlay.coordinates import Coordinate, Vivaldi, estimate
from tests.overlay.networks import peer_id

SEED = 2004


def test_estimates_come_close_to_the_true_distances_of_peers_on_a_map() -> None:
    luck = random.Random(SEED)
    places = [(luck.uniform(0, 100), luck.uniform(0, 100)) for _ in range(40)]
    access_ms = [luck.uniform(0.5, 5) for _ in places]
    peers = [Vivaldi(random.Random(luck.random())) for _ in places]

    def round_trip_ms(a: int, b: int) -> float:
        return (math.dist(places[a], places[b]) + access_ms[a] + access_ms[b]) * luck.uniform(1, 1.05)

    for _ in range(150 * len(peers)):
        a, b = luck.sample(range(len(peers)), 2)
        peers[a].observe(peer_id(b), peers[b].coordinate, round_trip_ms(a, b))
    errors = []
    for a in range(len(peers)):
        for b in range(a):
            guess = estimate(peers[a].coordinate, peers[b].coordinate)
            assert guess.ms is not None
            assert guess.kind == "estimated"
            true = math.dist(places[a], places[b]) + access_ms[a] + access_ms[b]
            errors.append(abs(guess.ms - true) / true)
    assert statistics.median(errors) < 0.13, f"seed={SEED} median error {statistics.median(errors):.0%}"


def test_a_single_late_answer_moves_nothing_far() -> None:
    here = Vivaldi(random.Random(SEED))
    other = Coordinate(error=0.1)
    for _ in range(100):
        here.observe(peer_id(1), other, 20.0)
    before = here.coordinate.distance_ms(other)
    here.observe(peer_id(1), other, 5000.0)
    assert abs(here.coordinate.distance_ms(other) - before) < 1


def test_numbers_that_cannot_be_are_ignored() -> None:
    here = Vivaldi(random.Random(SEED))
    for ms in (-1.0, math.nan, math.inf, 1e9):
        here.observe(peer_id(1), Coordinate(), ms)
    for rubbish in (Coordinate(position=(math.nan,) * 4), Coordinate(height=-5), Coordinate(error=math.inf)):
        here.observe(peer_id(1), rubbish, 10.0)
    assert here.coordinate == Coordinate()


def test_a_peer_that_claims_to_be_better_than_right_moves_nobody() -> None:
    here = Vivaldi(random.Random(SEED))
    for _ in range(100):
        here.observe(peer_id(1), Coordinate(error=0.1), 20.0)
    before = here.coordinate
    here.observe(peer_id(2), Coordinate(error=-before.error), 20.0)
    assert here.coordinate == before
