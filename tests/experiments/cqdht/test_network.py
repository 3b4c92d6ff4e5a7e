"""Whatever the network does to messages, every algorithm tells exactly what the reference evaluator says."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest

from experiments.cqdht.events import QueryInPlace
from experiments.cqdht.interests import Interests
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import AnyAlgorithm, Notify
from protocols.ids import PeerId
from protocols.messages import Message
from queries.catalogue import Stream
from queries.schema import Schema
from tests.experiments.cqdht.network import Network, Weather

pytestmark = pytest.mark.slow

ALGORITHMS: tuple[AnyAlgorithm, ...] = get_args(AnyAlgorithm)
STREAMS = {
    "R": Stream("R", Schema.parse("A int, B int, C decimal null, N string null")),
    "S": Stream("S", Schema.parse("D int, E float, F int null, N string")),
    "T": Stream("T", Schema.parse("at timestamp, p record(x int, y int null)")),
}
STORM = Weather(loss=0.2, repeat=0.2, latency_ms=(1, 400))
LIMITS = JoinLimits(recent_ms=20_000, late_ms=20_000, sweep_ms=500, busy_above=3, load_ms=10_000)

T1 = (
    "R.B = S.E",
    "R.C = S.D",
    "R.N = S.N",
    "R.A = S.F AND R.B <> S.D",
    "R.B = S.E AND R.C = S.F",
    "R.B = S.E AND R.A > 1 AND S.N LIKE 'a%'",
    "R.A + 1 = S.D - 2",
    "3 - R.B = S.F AND R.N = 'a'",
    "-(R.A - 2) = 1 + S.D",
)
T2 = (
    "4 * R.B + R.C + 8 = 5 * S.E + S.D * S.F",
    "R.A + R.B = S.D * 2",
    "coalesce(R.N, 'a') = lower(S.N)",
    "R.A * 0.5 = S.E",
    "R.B = S.E - 1 AND R.C < S.D",
)
WINDOWS = ("", "", " [RANGE 2 SECONDS]", " [RANGE 500 MILLISECONDS]", " [RANGE 1 HOUR]")
OUTPUTS = ("R.A, S.D", "*", "R.B + S.D AS sum, R.N || S.N AS both", "S.N", "1 AS one")
SELF_JOINS = (
    "SELECT a.A, b.A AS other FROM R{} a, R{} b WHERE a.B = b.B",
    "SELECT a.A, b.A AS other FROM R{} a, R{} b WHERE a.A = b.B",
    "SELECT a.A, b.B FROM R{} a, R{} b WHERE a.A = b.B AND a.B < b.A",
    "SELECT a.p.x, b.p.y FROM T{} a, T{} b WHERE a.p.x = b.p.y",
    "SELECT a.p.x, b.A FROM T{} a, R{} b WHERE a.p.y = b.B",
)


def any_query(luck: random.Random, algorithm: AnyAlgorithm) -> str:
    windows = luck.choice(WINDOWS), luck.choice(WINDOWS)
    if luck.random() < 0.3:
        return luck.choice(SELF_JOINS).format(*windows)
    where = luck.choice(T1 + T2 if algorithm == "dai-v" else T1)
    return f"SELECT {luck.choice(OUTPUTS)} FROM R{windows[0]}, S{windows[1]} WHERE {where}"


def any_row(luck: random.Random, stream: str) -> list[Any]:
    def number() -> int:
        return luck.randint(0, 3)

    match stream:
        case "R":
            return [number(), number(), luck.choice([None, "1.0", "2.00", "0.5"]), luck.choice([None, "a", "ab"])]
        case "S":
            return [number(), luck.choice([0.0, 1.0, 2, 0.5]), luck.choice([None, 1, 2]), luck.choice(["a", "ab", "b"])]
    return [f"2026-01-01T00:00:0{number()}Z", [number(), luck.choice([None, 0, 1, 2])]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(25))
def test_every_result_is_told_once_in_a_storm(algorithm: AnyAlgorithm, seed: int) -> None:
    luck = random.Random(f"{algorithm} {seed}")
    limits = JoinLimits(
        recent_ms=LIMITS.recent_ms,
        sweep_ms=LIMITS.sweep_ms,
        replicas=luck.choice([1, 1, 3]),
        choose_by=luck.choice(["rate", "skew"]),
        fingers_max=luck.choice([2, 1000]),
        busy_above=luck.choice([0, 1, 5, 10_000]),
    )
    interests = luck.choice([None, Interests()])
    network = Network(STREAMS, seed=seed, weather=STORM, limits=limits, interests=interests)
    names = []
    for _ in range(40):
        if luck.random() < 0.15:
            names.append(network.pose(any_query(luck, algorithm), algorithm))
        stream = luck.choice(list(STREAMS))
        network.publish(stream, any_row(luck, stream))
        network.run(for_ms=luck.choice([0, 1, 50, 400]))
        network.validate()
    network.run(for_ms=15_000)
    placed = [event.query for _, event in network.heard if isinstance(event, QueryInPlace)]
    assert sorted(placed) == sorted(names), f"seed={seed}"
    for name in names:
        network.check(name)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_storm_has_results_to_lose(algorithm: AnyAlgorithm) -> None:
    network = Network(STREAMS, weather=STORM, limits=LIMITS)
    luck = random.Random(algorithm)
    name = network.pose("SELECT R.A, S.D FROM R, S WHERE R.B = S.E", algorithm)
    for _ in range(60):
        stream = luck.choice(["R", "S"])
        network.publish(stream, any_row(luck, stream))
        network.run(for_ms=luck.choice([0, 50]))
    network.run(for_ms=15_000)
    network.check(name)
    assert len(network.told(name)) > 50


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(5))
def test_a_removed_query_leaves_nothing_behind(algorithm: AnyAlgorithm, seed: int) -> None:
    network = Network(STREAMS, seed=seed, weather=STORM, limits=LIMITS)
    luck = random.Random(f"{algorithm} {seed}")
    names = [network.pose(any_query(luck, algorithm), algorithm) for _ in range(6)]
    for number in range(30):
        stream = luck.choice(list(STREAMS))
        network.publish(stream, any_row(luck, stream))
        network.run(for_ms=luck.choice([0, 50, 400]))
        if number in (0, 10, 20):
            network.stop(names.pop())
    for name in names:
        network.stop(name)
    told = len(network.heard)
    network.run(for_ms=15_000)
    network.validate()
    assert all(node.is_empty() for node in network.nodes.values()), f"seed={seed}"
    network.publish("R", [1, 1, None, None])
    network.run(for_ms=5_000)
    assert not any(hasattr(event, "notification") for _, event in network.heard[told:]), f"seed={seed}"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_windows_bound_what_is_kept(algorithm: AnyAlgorithm) -> None:
    """Once the windows and what may be late have passed, no table holds anything but the queries."""
    network = Network(STREAMS, weather=STORM, limits=LIMITS)
    luck = random.Random(7)
    network.pose("SELECT R.A, S.D FROM R [RANGE 2 SECONDS], S [RANGE 1 SECOND] WHERE R.B = S.E", algorithm)
    network.run(for_ms=5_000)
    for _ in range(40):
        stream = luck.choice(["R", "S"])
        network.publish(stream, any_row(luck, stream), keep_ms=2_000)
        network.run(for_ms=100)
    assert sum(node.evaluator.stored_queries + node.evaluator.stored_tuples for node in network.nodes.values()) > 0
    network.run(for_ms=2_000 + 2 * LIMITS.recent_ms)
    network.validate()
    assert sum(node.evaluator.stored_queries + node.evaluator.stored_tuples for node in network.nodes.values()) == 0
    assert sum(node.rewriter.stored for node in network.nodes.values()) == (1 if algorithm == "sai" else 2)
    for node in network.nodes.values():  # Of cells only that they are elsewhere, or in parts.
        assert all(each.next is not None or each.bits for each in node.holder.cells)


@pytest.mark.parametrize("seed", range(10))
def test_where_equal_results_may_be_told_once_dai_t_tells_the_same_set(seed: int) -> None:
    network = Network(STREAMS, seed=seed, weather=STORM, limits=LIMITS)
    luck = random.Random(seed)
    name = network.pose("SELECT R.A, S.D FROM R, S WHERE R.B = S.E", "dai-t", is_set=True)
    for _ in range(60):
        stream = luck.choice(["R", "S"])
        network.publish(stream, any_row(luck, stream))
        network.run(for_ms=luck.choice([0, 50, 400]))
    network.run(for_ms=15_000)
    known = {result.notification_id(name): result.row for result in network.expected(name)}
    told = [each.id for each in network.told(name)]
    assert len(set(told)) == len(told), f"seed={seed}"
    assert {known[each] for each in told} == set(known.values()), f"seed={seed}"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(5))
def test_no_result_is_even_sent_twice_where_no_message_is(algorithm: AnyAlgorithm, seed: int) -> None:
    """However messages overtake each other, only one evaluator tells a pair: figure 3's problem."""
    network = Network(STREAMS, seed=seed, weather=Weather(latency_ms=(1, 400)), limits=LIMITS)
    sent: list[str] = []

    def listen(_sender: PeerId, _to: PeerId, message: Message) -> None:
        if isinstance(message, Notify):
            sent.extend(each.id for each in message.notifications)

    network.on_message = listen
    luck = random.Random(f"{algorithm} {seed}")
    names = [network.pose(any_query(luck, algorithm), algorithm) for _ in range(4)]
    for _ in range(40):
        stream = luck.choice(list(STREAMS))
        network.publish(stream, any_row(luck, stream))
        network.run(for_ms=luck.choice([0, 50, 400]))
    network.run(for_ms=15_000)
    expected = [result.notification_id(name) for name in names for result in network.expected(name)]
    assert sorted(sent) == sorted(expected), f"seed={seed}"
