"""Cells of a sweep, what is computed of each, and the options of a run."""

from __future__ import annotations

from pathlib import Path

from experiments import sweep

CELLS = [{"a": a, "b": b} for a in range(3) for b in (0.5, 2)]


def product(a: int, b: float) -> dict[str, float]:
    return {"product": a * b}


def chosen(out: Path, master: str = sweep.HERE, *, is_fresh: bool = False) -> sweep.Options:
    return sweep.Options(out=out, master=master, is_fresh=is_fresh)
