"""SAND's experiments in small: every one runs, and what must hold at any scale does."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from experiments import sweep
from experiments.report import Claim
from experiments.sand import figure_6, figure_8, figure_9, figure_11, messages, model
from protocols.placement.place import ALGORITHMS

SMALL = 0.0003  # One network, one run, three trees.


def held(claims: Iterable[Claim], where: str) -> bool:
    found = [claim for claim in claims if claim.where.startswith(where)]
    assert found
    return all(claim.holds for claim in found)


def test_scale_one_is_the_papers():
    assert len(model.slices(1.0)) == 100
    assert {each.trees for each in model.slices(1.0)} == {100}
    assert model.slices(SMALL) == [model.Slice(0, 0, 3)]
    for scale, trees in ((0.1, 1000), (0.01, 100), (0.003, 30)):
        assert sum(each.trees for each in model.slices(scale)) == trees


def test_networks_and_layouts_are_the_papers():
    view = model.make_network(3, 0)
    assert max(map(max, view.rows)) == pytest.approx(model.DIAMETER_MS)
    for scenario, apd_over_asd in model.SCENARIOS.items():
        luck = random.Random(f"3 {scenario}")
        proxy, sources = model.make_locations(luck, view, model.wanted(apd_over_asd), 8, model.REACH_MS)
        tree = model.make_tree(luck, 3, proxy, sources)
        assert len(set(sources)) == 8
        assert proxy not in sources
        assert max(view.distance(proxy, source) for source in sources) <= model.REACH_MS
        apd_ms, asd_ms = model.layout(view, tree)
        assert apd_ms / asd_ms == pytest.approx(apd_over_asd, rel=0.25), scenario


def test_what_is_drawn_does_not_depend_on_bound_or_selectivity():
    plain = model.measure(3, 0, 0, 3, (120.0,), ("exact",), 1.0)
    more = model.measure(3, 0, 0, 3, (300.0, 120.0), ("edge", "exact"), 1.0)
    choosier = model.measure(3, 0, 0, 3, (120.0,), ("exact",), 1.0, selectivity=0.5)
    assert plain[0][0] == more[1][1]
    assert model.Outcome(*plain[0][0])[-2:] == model.Outcome(*choosier[0][0])[-2:]


@pytest.mark.slow
def test_figures_6_and_7(tmp_path: Path):
    found = figure_6.figures(sweep.Options(scale=SMALL, seed=6, out=tmp_path))
    assert set(found) == {(scenario, bound) for scenario in model.SCENARIOS for bound in model.BOUNDS}
    for cell in found.values():
        assert list(cell) == list(ALGORITHMS)
        assert cell["exact"].ratio == pytest.approx(min(each.ratio for each in cell.values()))
        assert cell["baseline"].ratio == 1.0
        assert max(cell["edge+"].ratio, cell["in-network"].ratio) <= 1 + model.CLOSE
        for each in cell.values():
            assert each.at_sources + each.in_network + each.at_proxy == pytest.approx(1)
    assert len(list(figure_6.claims(found))) == 12


@pytest.mark.slow
def test_figure_8(tmp_path: Path):
    found = figure_8.figure(sweep.Options(scale=SMALL, seed=8, out=tmp_path))
    assert held(figure_8.claims(found), "ours")
    for share in figure_8.SHARES:  # A looser bound allows all that a tighter one does.
        assert found["loose", "exact"][share].ratio <= found["tight", "exact"][share].ratio + model.CLOSE


@pytest.mark.slow
def test_figures_9_and_10(tmp_path: Path):
    found = figure_9.figures(sweep.Options(scale=SMALL, seed=9, out=tmp_path))
    claims = list(figure_9.claims(found))
    assert held(claims, "ours")
    for form in figure_9.FORMS:
        ratios = [each.ratio for each in found[form, "exact"].values()]
        assert all(looser <= tighter + model.CLOSE for tighter, looser in pairwise(ratios))
        assert found[form, "in-network"][400.0].ratio == pytest.approx(found[form, "in-network"][500.0].ratio, abs=0.02)


@pytest.mark.slow
def test_figures_11_and_12(tmp_path: Path):
    found = figure_11.figures(sweep.Options(scale=SMALL, seed=11, out=tmp_path))
    claims = list(figure_11.claims(found))
    assert held(claims, "ours")
    ratios = [each.ratio for each in found["cluster, loose", "in-network"].values()]
    assert ratios[0] < ratios[-1]


@pytest.mark.slow
def test_section_5(tmp_path: Path):
    chosen = sweep.Options(scale=0.01, seed=5, out=tmp_path)
    counts = messages.counts(chosen)
    claims = list(messages.claims(counts, messages.savings(chosen)))
    assert held(claims, "section 4.2")
    assert held([claim for claim in claims if "O(d^" in claim.says], "section 5")
    for fanout, height in messages.ZONED.items():  # One zone for all of the tree against one for each operator.
        assert counts[fanout, height, height]["all"] < counts[fanout, height, 1]["all"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "experiment", [messages, figure_6, figure_8, figure_9, figure_11], ids=lambda each: each.__name__
)
def test_each_prints_a_table_its_claims_and_draws(
    experiment: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("matplotlib")
    assert experiment.main(["--scale", str(SMALL), "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("seed=")
    assert "holds " in told
    assert list(tmp_path.glob("sand_*.png"))
