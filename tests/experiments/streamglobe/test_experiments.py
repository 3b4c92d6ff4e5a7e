"""StreamGlobe's experiments in small: every one runs, and what must hold at any scale does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from experiments import sweep
from experiments.streamglobe import estimates, figure_6, joins, measure, overload, table_1
from experiments.streamglobe.measure import STRATEGIES
from experiments.streamglobe.residual import Residual, match
from tests.seeds import draw_seed


@pytest.mark.slow
def test_figure_6_on_one_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(figure_6, "SETUPS", figure_6.SETUPS[:1])
    assert figure_6.main(["--scale", "0.01", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "8 super-peers, 1 stream, 25 queries; seed=1, 1 seeds" in shown
    assert "DOES NOT HOLD fig 6: query shipping peaks" not in shown
    drawn = sorted(each.name for each in tmp_path.glob("*.png"))
    assert drawn == ["streamglobe_6_cpu.png", "streamglobe_6_traffic.png"]


def test_the_claims_of_the_overload_test_are_those_of_the_figures(tmp_path: Path):
    def told(refused: int, mbps: float) -> dict[str, object]:
        return {"refused": refused, "refused_for_cpu": refused, "total_mbps": mbps, "source_cpu": 1.0, "all_cpu": 2.0}

    refused = {"data shipping": 47, "query shipping": 35, "SUBSCRIBE": 2, "widening": 0, "ours": 0}
    found = {name: [told(number, 3.0 if name == "SUBSCRIBE" else 2.0)] for name, number in refused.items()}
    lines = {"ours": [(1.0, 0.0, 0), (2.0, 0.0, 0)]}
    assert all(each.holds for each in overload.claims(found, lines))
    worse = list(overload.claims(found | {"ours": [told(0, 2.5), told(1, 2.5)]}, {"ours": [(2.0, 0.5, 1)]}))
    assert [each.holds for each in worse] == [True, True, False, False, False]
    overload.draw(found, lines, sweep.Options(out=tmp_path))
    assert len(list(tmp_path.glob("*.png"))) == 2


@pytest.mark.slow
def test_table_1_times_every_strategy(tmp_path: Path):
    found = table_1.times(1, sweep.Options(scale=0.01, out=tmp_path))
    assert {name: len(took) for name, took in found.items()} == dict.fromkeys(STRATEGIES, 25)
    assert all(took > 0 for each in found.values() for took in each)


def test_scale_one_is_thirty_seeds():
    cells = measure.cells(sweep.Options(scale=1.0, seed=5), 2, is_tight=True)
    assert len(cells) == 30 * len(STRATEGIES)
    assert {each["seed"] for each in cells} == set(range(5, 35))


def test_quantiles_are_nearer_to_the_truth_than_guesses():
    found = estimates.estimated(2, setup=1)
    assert found.error["truth"] == 0
    assert found.error["quantiles"] < found.error["guess"]
    assert next(iter(estimates.claims([found]))).holds
    assert min(found.mbps.values()) > 0


def test_a_few_joins_serve_many_queries():
    luck = random.Random(draw_seed())
    posed = [joins.drawn(luck) for _ in range(40)]
    found = {rule: joins.running(rule, posed) for rule in joins.RULES}
    for rule in ("contained", "widened"):
        for plan in posed:
            assert any(isinstance(match(each, "shared", plan), Residual) for each in found[rule]), rule
    assert len(found["widened"]) <= 25, "20 and less in 49 of 50 draws"
    assert len(found["widened"]) < len(found["contained"]) <= len(found["alone"]) == 40
