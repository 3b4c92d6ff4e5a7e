"""What experiments print and draw."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments import plots
from experiments.report import Claim, print_claims, print_table

PNG = b"\x89PNG"


def test_a_table_has_text_on_the_left_and_numbers_on_the_right(capsys: pytest.CaptureFixture[str]):
    print_table(("scenario", "ratio", "peers"), [("star", 0.25, 7), ("cluster", 1.0, 300)])
    assert capsys.readouterr().out.splitlines() == [
        "scenario  ratio  peers",
        "star      0.250      7",
        "cluster   1.000    300",
    ]


def test_a_claim_says_whether_it_holds(capsys: pytest.CaptureFixture[str]):
    print_claims([Claim("fig 6", "less", "0.2 < 0.3", True), Claim("ours", "least", "0.4 > 0.3", False)])
    assert capsys.readouterr().out.splitlines() == [
        "holds         fig 6: less",
        "              0.2 < 0.3",
        "DOES NOT HOLD ours: least",
        "              0.4 > 0.3",
    ]


def test_lines_and_bars_become_files(tmp_path: Path):
    pytest.importorskip("matplotlib")
    series = {f"line {number}": [(1.0, number + 1.0), (10.0, number + 2.0)] for number in range(10)}
    drawn = plots.lines(tmp_path / "new" / "lines.png", series, title="lines", x="x", y="y", log="xy")
    assert drawn is not None
    assert drawn.read_bytes().startswith(PNG)
    drawn = plots.bars(tmp_path / "bars.png", ("a", "b"), {"one": [1, 2], "two": [2, 1]}, title="bars", y="y")
    assert drawn is not None
    assert drawn.read_bytes().startswith(PNG)


def test_without_matplotlib_there_is_a_word_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert plots.bars(tmp_path / "bars.png", ("a",), {"one": [1]}, title="bars", y="y") is None
    assert not (tmp_path / "bars.png").exists()
    assert "plots need matplotlib" in capsys.readouterr().err
