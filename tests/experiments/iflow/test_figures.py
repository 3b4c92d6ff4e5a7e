"""IFLOW's experiments in small: every one runs, and what must hold at any scale does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from experiments import sweep
from experiments.iflow import figure_2, figure_6, figure_12, figure_13, figure_15, joint, model
from experiments.iflow.deploy import Deployed, Filters, measure, outcome
from experiments.iflow.model import Query, World
from experiments.report import Claim
from protocols.planning.exact import plan_exactly
from protocols.planning.problem import Reused, is_connected

SMALL = 0.005  # One network, as few queries as there can be.


def held(claims: Iterable[Claim], *wheres: str) -> bool:
    found = [claim for claim in claims if claim.where in wheres]
    assert found
    return all(claim.holds for claim in found)


def test_networks_are_the_papers():
    """Section 4.1: one transit domain of four nodes, four stub domains of eight at each, cheap links in stubs."""
    for peers in model.SHAPES:
        view = model.make_view(1, 0, peers)
        assert len(view.peers) == peers
    view = model.make_view(1, 0, 128)
    stubs = [range(first, first + 8) for first in range(0, 128, 8)]
    inside = max(view.rows[a][b] for stub in stubs for a in stub for b in stub)
    across = min(view.rows[a][b] for a in stubs[0] for b in stubs[-1])
    assert 0 < inside < across + 20
    assert all(view.rows[a][b] == view.rows[b][a] for a in range(128) for b in range(a))


def test_the_synthetic_workload_is_the_papers():
    world = model.make_world(1, 0, 128, "synthetic", 100, streams=10)
    joined = [query.streams.bit_count() for query in world.queries]
    assert (min(joined), max(joined)) == (3, 6)
    assert all(1 <= world.beta(1 << stream) <= 100 for stream in range(10))


def test_the_airline_workload_is_the_papers():
    """Figure 5, and 80 / 15 / 5 % of gate agents, terminals and ad-hoc queries."""
    world = model.make_world(1, 0, 128, "airline", 3000)
    kinds = [query.tag.partition(" ")[0] for query in world.queries]
    assert kinds.count("gate") / 3000 == pytest.approx(0.80, abs=0.03)
    assert kinds.count("terminal") / 3000 == pytest.approx(0.15, abs=0.03)
    assert [world.beta(1 << stream) / model.ROW_BYTES for stream in range(5)] == [300, 240, 500, 90, 70]
    assert all(is_connected(world.graph, query.streams) for query in world.queries)


def lone(filters: Filters) -> Deployed:
    """Flights and check-ins, published at two peers; nobody has asked yet."""
    world = model.make_world(1, 0, 128, "airline", 3)
    return Deployed(world, filters, reuses=True)


def asked(world: World, tag: str, share: float) -> Query:
    return Query(0b00011, world.view.peers[7], share, tag)


@pytest.mark.parametrize(("filters", "widened"), [("shared", False), ("pushed", True)])
def test_a_join_with_another_filter_is_reused_once_it_is_relaxed(filters: Filters, widened: bool):
    deployed = lone(filters)
    first = asked(deployed.world, "gate 1 of terminal 1", 0.01)
    problem = deployed.problem(first)
    assert problem.derived == ()
    deployed.deploy(first, problem, plan_exactly(problem).plan)
    second = asked(deployed.world, "gate 2 of terminal 2", 0.01)
    problem = deployed.problem(second)
    assert problem.derived
    assert all((each.widening > 0) == widened for each in problem.derived)
    if not widened:
        assert isinstance(plan_exactly(problem).plan, Reused)
    same = deployed.problem(asked(deployed.world, first.tag, first.share))
    assert all(each.widening == 0 for each in same.derived)


def test_what_is_deployed_adds_up():
    found = measure(1, 0, 64, "synthetic", 6, 16, ["exact", "phased"], joined=3)
    alone = measure(1, 0, 64, "synthetic", 6, 16, ["exact", "phased"], joined=3, reuse=False)
    for name in ("exact", "phased"):
        assert outcome(found, name).cost <= outcome(alone, name).cost * (1 + 1e-9)
        assert outcome(alone, name).joins == 12


def test_scale_one_is_ten_networks_with_all_queries():
    assert model.size_of(1.0, 300) == (10, 300)
    assert model.size_of(0.1, 300) == (1, 300)
    assert model.size_of(0.01, 300) == (1, 30)


def test_figure_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert figure_2.main(["--scale", str(SMALL), "--out", str(tmp_path)]) == 0
    assert "holds         theorems:" in capsys.readouterr().out
    assert [each.name for each in tmp_path.glob("*.png")] == ["iflow_2.png"]


@pytest.mark.slow
def test_figures_6_to_11(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figure_6, "QUERIES", 60)
    chosen = sweep.Options(SMALL, out=tmp_path)
    found = figure_6.figure(chosen)
    assert held(figure_6.claims(found), "theorems")
    figure_6.draw(found, chosen)
    assert len(list(tmp_path.glob("*.png"))) == 2


def test_figure_12(tmp_path: Path):
    found = figure_12.figure(sweep.Options(SMALL, out=tmp_path))
    assert held(figure_12.claims(found), "ours", "theorems")


def test_figures_13_and_14(tmp_path: Path):
    found = figure_13.figure(sweep.Options(SMALL / 5, out=tmp_path))
    assert held(figure_13.claims(found), "theorems")


def test_figure_15(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figure_15, "PEERS", (64, 128))
    found = figure_15.figure(sweep.Options(SMALL, out=tmp_path))
    assert held(figure_15.claims(found, SMALL), "theorems")


def test_queries_planned_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert joint.main(["--scale", "0.02", "--out", str(tmp_path)]) == 0
    assert "holds         ours: planning queries again" in capsys.readouterr().out
