"""What is left of a resource, and what a refusal says."""

from __future__ import annotations

import math

import pytest

from experiments.streamglobe.capacity import Capacity
from protocols.sharing.capacity import MEASURED_AFTER_MS, Resource

WEIGHTS = {"link": 0.5, "CPU": 0.5}


def small() -> Capacity:
    return Capacity({"link a-b": Resource(1000.0, "bit/s"), "CPU of a": Resource(10.0, "%")})


def test_what_is_promised_is_not_free_before_it_is_measured():
    capacity = small()
    assert capacity.admit("q1", {"link a-b": 600.0}, now=0) is None
    refusal = capacity.admit("q2", {"link a-b": 600.0, "CPU of a": 1.0}, now=0)
    assert refusal is not None
    assert capacity.resources["CPU of a"].free == 10.0, "who is refused has reserved nothing"
    link = capacity.resources["link a-b"]
    link.measure(100.0, now=MEASURED_AFTER_MS - 1)  # The query has begun, and does not show yet.
    assert link.free == 300.0
    link.measure(600.0, now=MEASURED_AFTER_MS)
    assert link.free == 400.0
    assert capacity.admit("q3", {"link a-b": 400.0}, now=MEASURED_AFTER_MS) is None
    capacity.release("q3")
    assert link.free == 400.0


def test_a_refusal_says_what_was_needed_what_was_free_and_what_would_help():
    capacity = small()
    capacity.admit("q1", {"link a-b": 962.0, "CPU of a": 8.0}, now=0)
    assert str(capacity.admit("q-17", {"link a-b": 112.0, "CPU of a": 4.0}, now=0)) == (
        'query "q-17" refused: every plan would overload something\n'
        "detail: link a-b has 38 of 1,000 bit/s left, it needs 112. CPU of a has 2 of 10 % left, it needs 4.\n"
        "hint: A narrower selection of a stream that is already shared, or another peer to subscribe at, needs less."
    )


def test_a_peer_has_an_uplink_and_a_downlink_as_connections_have_one_capacity():
    capacity = Capacity({f"{way} of 3f9a": Resource(1000.0, "kbit/s") for way in ("uplink", "downlink")})
    assert capacity.admit("q1", {"uplink of 3f9a": 962.0, "downlink of 3f9a": 10.0}, now=0) is None
    refusal = capacity.admit("q2", {"uplink of 3f9a": 112.0, "downlink of 3f9a": 112.0}, now=0)
    assert refusal is not None
    assert [each.resource for each in refusal.shortages] == ["uplink of 3f9a"]
    assert "hint: A narrower selection, fewer columns or a window aggregate needs less." in str(refusal)


def test_a_resource_without_capacity_takes_nothing_and_one_that_nobody_limits_everything():
    capacity = Capacity({"CPU of a": Resource(0.0, "%")})
    assert capacity.admit("q1", {"CPU of a": 0.0, "link a-b": 1e12}, now=0) is None
    refusal = capacity.admit("q2", {"CPU of a": 0.1}, now=0)
    assert refusal is not None
    assert "has 0 of 0 % left" in str(refusal)
    assert capacity.cost({"CPU of a": 0.1}, WEIGHTS) == math.inf
    assert capacity.cost({"CPU of a": 0.0}, WEIGHTS) == 0


def test_the_cost_of_a_plan_is_what_it_adds_with_a_penalty_for_overload():
    """Section 3.2: γ Σ (u_b + max(0, u_b - a_b) e^(u_b - a_b)) + (1 - γ) Σ the same of u_l and a_l."""
    capacity = small()
    assert capacity.cost({"link a-b": 200.0, "CPU of a": 1.0}, WEIGHTS) == pytest.approx(0.5 * 0.2 + 0.5 * 0.1)
    capacity.admit("q1", {"link a-b": 900.0}, now=0)
    assert capacity.cost({"link a-b": 200.0}, WEIGHTS) == pytest.approx(0.5 * (0.2 + 0.1 * math.exp(0.1)))
