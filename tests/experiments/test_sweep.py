"""Sweeps: every cell once, in order, and through interruptions; tests/spark_jobs/test_sweep.py has those on Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import sweep
from tests.experiments.cells import CELLS, chosen, product


class Counted:
    """A cell's function that notes its calls, and fails from one of them on."""

    def __init__(self, fails_at: int) -> None:
        self.calls: list[tuple[int, float]] = []
        self._fails_at = fails_at

    def __call__(self, a: int, b: float) -> dict[str, float]:
        if len(self.calls) == self._fails_at:
            raise KeyboardInterrupt
        self.calls.append((a, b))
        return product(a, b)


def test_results_come_in_the_order_of_the_cells(tmp_path: Path):
    expected = [{"product": cell["a"] * cell["b"]} for cell in CELLS]
    assert sweep.run("products", product, CELLS, chosen(tmp_path)) == expected


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path):
    first, second = Counted(4), Counted(99)
    with pytest.raises(KeyboardInterrupt):
        sweep.run("products", first, CELLS, chosen(tmp_path))
    with (tmp_path / "products.jsonl").open("a") as file:
        file.write('{"cell": {"a": 2, "b"')  # A line that was being written.
    assert sweep.run("products", second, CELLS, chosen(tmp_path)) == [product(**cell) for cell in CELLS]
    assert (len(first.calls), len(second.calls)) == (4, 2)
    lines = (tmp_path / "products.jsonl").read_text().splitlines()
    assert [json.loads(line)["cell"] for line in lines] == CELLS


def test_a_fresh_run_forgets_what_was_found(tmp_path: Path):
    for is_fresh, calls in ((False, 6), (False, 0), (True, 6)):
        counted = Counted(99)
        sweep.run("products", counted, CELLS, chosen(tmp_path, is_fresh=is_fresh))
        assert len(counted.calls) == calls


def test_the_arguments_of_an_experiment():
    parser = sweep.parser("some figure", scale=0.1, seed=6)
    assert sweep.options(parser.parse_args([])) == sweep.Options(0.1, 6)
    given = parser.parse_args("--scale 1 --seed 2 --out there --master local[2] --fresh".split())
    assert sweep.options(given) == sweep.Options(1.0, 2, Path("there"), "local[2]", True)


def test_without_a_cluster_it_says_how_to_do_without(tmp_path: Path):
    with pytest.raises(SystemExit, match="--master here needs no Spark"):
        sweep.run("products", product, CELLS, chosen(tmp_path, "spark://127.0.0.1:1"))
