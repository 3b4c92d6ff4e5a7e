"""What a benchmark found, for the tables of `all.py` and `against.py`: one line of JSON for each figure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = "BENCH_FIGURES"  # The environment variable that names the file. Without it, nobody collects figures.
GOAL_MISSED: Final = 3  # Exit code of a benchmark that ran to its end and missed a goal.


class Figure(msgspec.Struct, frozen=True):
    """One measured number, and the one it was measured beside, if there was one."""

    what: str
    ours: float
    unit: str  # With "/s" in it, more is better; otherwise it is a time or a cost, and less is.
    baseline: str = ""
    theirs: float = 0.0

    @property
    def ratio(self) -> float:
        """How many times better ours is than the baseline."""
        return better(self.unit, self.ours, self.theirs)


def better(unit: str, ours: float, theirs: float) -> float:
    """How many times better one figure is than another.

    >>> better("tuples/s", 200.0, 100.0), better("ms", 5.0, 20.0)
    (2.0, 4.0)
    """
    return ours / theirs if "/s" in unit else theirs / ours


def note(what: str, ours: float, unit: str, baseline: str = "", theirs: float = 0.0) -> None:
    """Hand a figure to whoever collects them."""
    if path := os.environ.get(FILE):
        with Path(path).open("ab") as file:
            file.write(msgspec.json.encode(Figure(what, ours, unit, baseline, theirs)) + b"\n")


def noted(path: Path) -> list[Figure]:
    """The figures in a file, in the order they came."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Figure) for line in lines]
