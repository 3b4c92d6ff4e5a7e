"""A trace on disk: its run, then every step as a line of text; enough to repeat the run and compare.

{"scenario": "peers = 5 ...", "seed": 7, "commit": "1f3c9d2"}
0.000 p0 Started() -> [...]
...
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TextIO

import msgspec

from overlay.sim.run import Outcome, run
from overlay.sim.scenario import parse_scenario


class TraceError(ValueError):
    """A file is not a trace of ours."""


class TraceHead(msgspec.Struct, frozen=True, kw_only=True):
    """Which run a trace is of."""

    scenario: str  # The whole text.
    seed: int
    commit: str


class Difference(msgspec.Struct, frozen=True):
    """The first step at which a run differs from its trace."""

    number: int
    recorded: str
    now: str


def record(path: Path, head: TraceHead) -> Outcome:
    """Run a seed and write down every step."""
    with path.open("w", encoding="utf-8") as file:
        file.write(msgspec.json.encode(head).decode() + "\n")
        return run(parse_scenario(head.scenario), head.seed, file.write)


def read_head(file: TextIO) -> TraceHead:
    try:
        return msgspec.json.decode(file.readline(), type=TraceHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(str(error)) from error


def replay(path: Path, show: Callable[[str], None] | None = None) -> tuple[Outcome, Difference | None]:
    """Repeat a trace's run beside the file; the first difference ends the comparison, not the run."""
    with path.open(encoding="utf-8") as file:
        head = read_head(file)
        comparison = _Comparison(file, show)
        outcome = run(parse_scenario(head.scenario), head.seed, comparison.step)
        return outcome, comparison.end()


class _Comparison:
    def __init__(self, file: TextIO, show: Callable[[str], None] | None) -> None:
        self._file = file
        self._show = show
        self._number = 0
        self._difference: Difference | None = None

    def step(self, line: str) -> None:
        if self._show is not None:
            self._show(line.rstrip("\n"))
        if self._difference is None:
            self._number += 1
            self._compare(self._file.readline(), line)

    def end(self) -> Difference | None:
        if self._difference is None and (rest := "".join(islice(self._file, 1))):
            self._number += 1
            self._compare(rest, "")
        return self._difference

    def _compare(self, recorded: str, now: str) -> None:
        if recorded != now:
            self._difference = Difference(self._number, recorded.rstrip("\n"), now.rstrip("\n"))
