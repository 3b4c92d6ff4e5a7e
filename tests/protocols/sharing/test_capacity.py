"""What a peer has room for: limits, use, reservations, and what rows are learned to cost."""

from __future__ import annotations

import math

import pytest

from protocols.demand import Demand, Lack, Traffic
from protocols.sharing.capacity import (
    CORE_SHARE,
    MEASURED_AFTER_MS,
    MICROS,
    OFF_MAX,
    TELLING_US,
    USUAL_US,
    Capacities,
    Capacity,
    Costs,
    Use,
)

DEMAND = Demand((Traffic(100.0, 5000.0), Traffic(10.0, 700.0)), Traffic(50.0, 4000.0))
IDLE = Use(0.0, 0.0, 0.0, 0.0)


def small(**more: object) -> Capacity:
    allowed = {"cpu_share": 0.1, "uplink": 125_000.0, "downlink": 125_000.0, "cores": 2, **more}
    return Capacity(Capacities(**allowed))  # type: ignore[arg-type]


def settled(capacity: Capacity, use: Use, now: int = 0) -> None:
    """Measure until the use is what it is."""
    for _ in range(60):
        capacity.measure(use, {}, {}, now)


def test_who_is_admitted_reserves_until_a_measurement_ten_seconds_after_it_has_begun():
    capacity = small()
    assert capacity.admit("q1", {"uplink": 75_000.0}) is None
    lack = Lack("uplink", 75_000.0, 50_000.0, 125_000.0)
    assert capacity.admit("q2", {"uplink": 75_000.0}) == lack
    capacity.measure(IDLE, {}, {}, now=10 * MEASURED_AFTER_MS)
    assert capacity.admit("q2", {"uplink": 75_000.0}) == lack, "it has not begun"
    begun_at = 10 * MEASURED_AFTER_MS
    capacity.begin("q1", begun_at)
    capacity.measure(IDLE, {}, {}, now=begun_at + MEASURED_AFTER_MS - 1)
    assert capacity.admit("q2", {"uplink": 75_000.0}) == lack
    settled(capacity, Use(0.0, 0.0, 40_000.0, 0.0), now=begun_at + MEASURED_AFTER_MS)
    assert capacity.resources["uplink"].free == pytest.approx(85_000.0)
    assert capacity.admit("q2", {"uplink": 75_000.0}) is None


def test_what_has_ended_is_free_again_and_who_was_refused_has_reserved_nothing():
    capacity = small()
    assert capacity.admit("q1", {"cpu": 150_000.0, "uplink": 1.0}) is None
    assert capacity.admit("q2", {"uplink": 10.0, "cpu": 100_000.0}) == Lack("cpu", 1e5, 5e4, 2e5, 2e6)
    assert capacity.resources["uplink"].reserved == 1.0
    capacity.release("q1")
    assert [each.reserved for each in capacity.resources.values()] == [0.0] * 4


def test_who_must_be_let_in_is_and_others_are_refused_meanwhile():
    capacity = small()
    capacity.reserve("accepted before", {"downlink": 200_000.0})
    assert capacity.resources["downlink"].free == 0.0
    assert capacity.admit("new", {"downlink": 1.0}) == Lack("downlink", 1.0, 0.0, 125_000.0)
    assert capacity.admit("frugal", {"downlink": 0.0}) is None


def test_without_limits_everybody_is_admitted():
    capacity = Capacity()
    assert capacity.admit("q", dict.fromkeys(capacity.resources, 1e12)) is None
    assert not any(each.is_limited for each in capacity.resources.values())


def test_the_daemon_is_one_thread_however_many_cores_there_are():
    capacity = small(cpu_share=1.0, cores=16)
    settled(capacity, Use(0.8 * MICROS, 0.0, 0.0, 0.0))
    inline, spark = ({"cpu": 2e5, "core": core} for core in (2e5, 0.0))
    lack = capacity.admit("windows", inline)  # type: ignore[arg-type]
    assert lack is not None
    assert (lack.resource, lack.limit, lack.whole) == ("core", CORE_SHARE * MICROS, 16 * MICROS)
    assert capacity.admit("join", spark) is None  # type: ignore[arg-type]


def test_one_second_of_much_use_is_not_yet_a_full_peer():
    capacity = small()
    capacity.measure(Use(0.0, 0.0, 125_000.0, 0.0), {}, {}, now=0)
    assert capacity.resources["uplink"].free > 80_000.0


def test_a_load_is_rows_times_what_they_cost_and_what_goes_over_links():
    capacity = small()
    event, select, result, spark = (USUAL_US[each] for each in ("event", "select", "result", "spark"))
    # Two events whatever comes, at most twenty for each input and for what goes out.
    rest = event * (2 + 20 + 20 + 10) + result * 50
    assert capacity.load(DEMAND, "select", {}) == {
        "cpu": pytest.approx(rest + 110 * select),
        "core": pytest.approx(rest + 110 * select),
        "uplink": 4000.0,
        "downlink": 5700.0,
    }
    with_spark = capacity.load(DEMAND, "spark", {})
    assert with_spark["cpu"] == pytest.approx(rest + 110 * spark)
    assert with_spark["core"] == pytest.approx(rest), "the rows of Spark are not the daemon's work"
    shared = capacity.load(DEMAND, "select", {0: True})
    assert shared["downlink"] == 700.0, "its first stream comes here anyway"
    assert shared["cpu"] == pytest.approx(rest - 20 * event + 110 * select)


def test_what_a_row_costs_is_learned_from_what_was_spent():
    costs = Costs()
    usual = USUAL_US["select"]
    for _ in range(100):
        costs.learn({"select": 20_000.0}, 20_000.0 * 3 * usual)
    assert costs.micros["select"] == pytest.approx(3 * usual, rel=0.01)
    assert costs.micros["window"] == USUAL_US["window"], "of which there was none"


def test_of_two_kinds_the_one_that_takes_most_is_corrected_most():
    costs = Costs()
    costs.learn({"window": 100_000.0, "result": 100.0}, 300_000.0)
    off = {each: costs.micros[each] / USUAL_US[each] for each in ("window", "result")}
    assert 1.0 < off["result"] < 1.01 < off["window"] < 2.0


def test_little_work_and_absurd_measurements_teach_little():
    costs = Costs()
    costs.learn({"select": 10.0}, TELLING_US * 100)
    assert costs.micros == USUAL_US
    for _ in range(1000):
        costs.learn({"select": 1e6}, 1e15)
    assert costs.micros["select"] == USUAL_US["select"] * OFF_MAX
    assert all(map(math.isfinite, costs.micros.values()))
