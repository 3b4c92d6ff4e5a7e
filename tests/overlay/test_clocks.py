"""How far a clock is off: the median of all of them decides, and a clock that is set shows at once."""

from __future__ import annotations

import pytest

from overlay import dht as dht_module
from overlay.clocks import SAMPLES, Clocks, ClockSamples
from protocols.events import ClockCompared
from tests.overlay.networks import started, until


@pytest.mark.parametrize(
    ("own_ms", "others_ms", "expected"),
    [
        (0.0, [], ClockCompared(0, 0)),
        (0.0, [2_000.0], ClockCompared(-2_000, 1)),  # Told, and for others to judge: one of both is wrong.
        (2_000.0, [0.0, 0.0], ClockCompared(2_000, 2)),
        (0.0, [0.0, 2_000.0], ClockCompared(0, 2)),
        (0.0, [-2_000.0, 2_000.0], ClockCompared(0, 2)),
        (0.0, [0.0, 2_000.0, 2_000.0], ClockCompared(0, 3)),  # As many say one thing as the other.
        (2_000.0, [0.0, 0.0, 2_000.0, 0.0], ClockCompared(2_000, 4)),
        (-700.0, [10.0, -5.0, 60_000.0, 0.0], ClockCompared(-700, 4)),
    ],
)
def test_the_median_of_all_clocks_is_the_time(own_ms: float, others_ms: list[float], expected: ClockCompared):
    assert Clocks().compare(own_ms, others_ms) == expected


def test_a_peer_that_nobody_answers_any_more_goes_by_what_it_knew():
    clocks = Clocks()
    assert clocks.compare(0.0, [0.0, 0.0, 0.0]) == ClockCompared(0, 3)
    assert clocks.compare(3_600_000.0, []) == ClockCompared(3_600_000, 3)


def test_the_shortest_round_trip_of_the_last_few_is_believed():
    samples = ClockSamples()
    assert samples.ahead_of_steady_ms is None
    samples.add(400.0, 180.0)
    samples.add(1.0, 3.0)
    samples.add(90.0, -40.0)
    assert samples.ahead_of_steady_ms == 3.0
    for _ in range(SAMPLES):
        samples.add(2.0, 5_000.0)
    assert samples.ahead_of_steady_ms == 5_000.0


@pytest.mark.slow
async def test_peers_of_one_machine_agree_until_the_clock_of_one_is_set(monkeypatch: pytest.MonkeyPatch):
    async with started(4) as peers:
        first = peers[0].dht
        await until(lambda: first.clock().peers == 3, "everybody has told its time")
        await until(lambda: abs(first.clock().offset_ms) < 100, "somebody has told it quickly")
        before_ms = first.clock().offset_ms
        assert "clock_offset_ms" in first.stats()
        clock_ms = dht_module.wall_ms
        monkeypatch.setattr(dht_module, "wall_ms", lambda: clock_ms() + 2_000)  # Of the whole process: nobody differs
        assert abs(first.clock().offset_ms - before_ms - 2_000) < 100  # but from what was told before.
        await until(lambda: abs(first.clock().offset_ms) < 100, "the others have told their new time")
