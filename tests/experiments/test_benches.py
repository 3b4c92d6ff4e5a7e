"""All benchmarks in one go: one that fails or takes too long is named, and the others count."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.benches.against import Found, keep_better
from experiments.benches.all import Part, run, show
from experiments.benches.figures import FILE, Figure, note, noted


def test_a_benchmark_that_fails_or_takes_too_long_says_so(tmp_path: Path):
    file = tmp_path / "figures"
    assert run("no_such_bench", 30.0, file).trouble == "ended with exit code 1"
    assert run("placement_bench", 0.2, file).trouble == "was not done after 0.2 s"
    assert noted(file) == []


def test_figures_are_handed_on_and_shown_beside_their_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "figures"
    note("join", 1.0, "tuples/s")
    assert noted(file) == [], "nobody collects them"
    monkeypatch.setenv(FILE, str(file))
    note("join", 90_000.0, "tuples/s", "Pathway", 60_000.0)
    note("join", 5.0, "ms", "Pathway", 10.0)
    note("alone", 7.0, "ms")
    show(noted(file), [Part("join_bench", 30.0, ""), Part("spark_bench", 30.0, "was not done after 9 s")])
    told = capsys.readouterr().out.splitlines()
    assert [line.split() for line in told[2:]] == [
        ["join,", "to", "Pathway", "90,000", "tuples/s", "60,000", "1.50"],
        ["join,", "to", "Pathway", "5", "ms", "10", "2.00"],
        ["1.0", "minutes"],
        ["FAILED:", "spark_bench", "was", "not", "done", "after", "9", "s"],
    ]


def test_of_two_rounds_the_better_figure_counts():
    found: Found = {}
    for ours in (3.0, 2.0, 4.0):
        keep_better(found, Figure("a", ours, "ms"))
        keep_better(found, Figure("a", ours, "rows/s"))
    assert found == {("a", "ms"): 2.0, ("a", "rows/s"): 4.0}
