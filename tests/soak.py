"""`make soak`: every seed of every scenario, a full hunt for each planted bug, and the whole suite at its largest.

It takes hours. Progress is kept in .soak.json: a run that was interrupted goes on where it was, one at another commit
begins anew. At the end it prints a line for each scenario. A seed that fails is printed with the command that plays it
again, the others are played all the same, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import msgspec

from overlay.sim.run import Verdict
from tests.sim.bugs import BUGS
from tests.sim.hunt import hunt
from tests.sim.series import KNOWN, SERIES, Played, Series, play

ROOT = Path(__file__).parent.parent
SAVE_S = 5.0
SAY_S = 60.0
COLUMNS = "{:40} {:>6} {:>10} {:>10} {:>5} {:>6} {:>7} {:>8}"


class Totals(msgspec.Struct):
    """What the seeds of one series came to so far."""

    seeds: int = 0
    publishes: int = 0
    rows: int = 0
    lost: int = 0  # Seeds in which something due never came,
    false: int = 0  # a row came twice, or one that nobody published,
    broken: int = 0  # or a peer broke one of its own rules.
    moves: int = 0
    joins_apart: int = 0
    took_s: float = 0.0  # Of a processor.

    def add(self, played: Played) -> None:
        self.seeds += 1
        self.publishes += played.accepted
        self.rows += played.delivered
        self.moves += played.moves
        self.joins_apart += played.joins_apart
        self.lost += played.verdict is Verdict.LIVENESS
        self.false += played.verdict is Verdict.CORRECTNESS
        self.broken += played.verdict is Verdict.CRASH

    def failed(self) -> int:
        return self.lost + self.false + self.broken


class State(msgspec.Struct):
    """How far a soak has come."""

    commit: str
    series: dict[str, Totals] = msgspec.field(default_factory=dict)
    hunts: dict[str, int | None] = msgspec.field(default_factory=dict)  # The seed that found a planted bug.
    hunts_took_s: float = 0.0
    suite: str = ""  # "passed" or "failed" once it was run.
    suite_took_s: float = 0.0
    problems: list[str] = msgspec.field(default_factory=list)


class Soak:
    """One run, from the state that an earlier one left."""

    def __init__(self, path: Path, jobs: int, seeds: int | None) -> None:
        self._path, self._jobs, self._seeds = path, jobs, seeds
        commit = described()
        self.state = State(commit)
        if path.exists():
            before = msgspec.json.decode(path.read_bytes(), type=State)
            if before.commit == commit:
                self.state = before
                say(f"going on where {path} was left")
            else:
                say(f"{path} is of {before.commit}, this is {commit}: begin anew")
        self._saved_at = self._said_at = time.monotonic()

    def play(self, parts: Sequence[str]) -> None:
        """Hunt and play what is left of these parts; no processor waits for the end of another's part."""
        names = [name for name in BUGS if "hunts" in parts and name not in self.state.hunts]
        left = [(name, seed) for name in SERIES if name in parts for seed in self._seeds_left(SERIES[name])]
        with ProcessPoolExecutor(self._jobs, initializer=_begin) as pool:
            try:
                # Hunts are long and begin first, so that at the end there is something short to fill up with.
                hunts = {name: pool.submit(_hunt, name) for name in names}
                for (name, seed), (played, took_s) in zip(left, pool.map(_play, *zip(*left, strict=True)), strict=True):
                    self._count(SERIES[name], seed, played, took_s)
                    self._note(hunts, wait=False)
                    self._keep(f"{name}: {seed} of {self._wanted(SERIES[name])} seeds")
                self._note(hunts, wait=True)
            finally:
                pool.shutdown(cancel_futures=True)
        self.save()

    def _wanted(self, series: Series) -> int:
        return self._seeds if self._seeds is not None else series.soaked

    def _seeds_left(self, series: Series) -> range:
        return range(self.state.series.setdefault(series.name, Totals()).seeds + 1, self._wanted(series) + 1)

    def _count(self, series: Series, seed: int, played: Played, took_s: float) -> None:
        totals = self.state.series[series.name]
        totals.add(played)
        totals.took_s += took_s
        if played.verdict is not Verdict.OK:
            self._problem(f"{series.command(seed)}: {played.verdict.name}: {played.problem}")
        if seed == series.soaked and not self._seeds:
            for what, share in (("moves", series.moves_least), ("joins_apart", series.joins_apart_least)):
                if getattr(totals, what) < share * totals.seeds:
                    self._problem(f"{series.name}: only {getattr(totals, what)} {what} in {totals.seeds} seeds")

    def _note(self, hunts: dict[str, Future[tuple[int | None, float]]], *, wait: bool) -> None:
        """Note the hunts that are over, or all of them."""
        for name in [name for name, search in hunts.items() if wait or search.done()]:
            self.state.hunts[name], took_s = hunts.pop(name).result()
            if self.state.hunts[name] is None:
                self._problem(f"{name} is not found in {BUGS[name].seeds} seeds of {BUGS[name].scenario}")
            self.state.hunts_took_s += took_s
            self._keep(f"{len(self.state.hunts)} of {len(BUGS)} planted bugs")

    def run_suite(self) -> None:
        if not self.state.suite:
            since = time.monotonic()
            done = subprocess.run(["make", "test"], check=False, cwd=ROOT, env={**os.environ, "PEER_SOAK": "1"})
            self.state.suite = "failed" if done.returncode else "passed"
            self.state.suite_took_s = time.monotonic() - since
            if done.returncode:
                self._problem("PEER_SOAK=1 make test fails")
            self.save()

    def report(self) -> Iterator[str]:
        """The totals; the minutes are those of a processor, the suite's those of a clock."""
        yield COLUMNS.format("scenario", "seeds", "publishes", "rows", "lost", "false", "broken", "minutes")
        every = Totals()
        for name, totals in self.state.series.items():
            yield _line(name, totals)
            for field in Totals.__struct_fields__:
                setattr(every, field, getattr(every, field) + getattr(totals, field))
        yield _line("all of them", every)
        found = {name: seed for name, seed in self.state.hunts.items() if seed is not None}
        hunted = f"{len(self.state.hunts)} of {len(BUGS)} hunted, {len(found)} found"
        yield f"planted bugs: {hunted}, {self.state.hunts_took_s / 60:.1f} minutes of a processor"
        known = KNOWN["planted"]
        yield from (
            f"  seeds.toml, [planted]: {name} = {seed}" for name, seed in found.items() if known.get(name) != seed
        )
        yield f"whole suite: {self.state.suite or 'not run'}, {self.state.suite_took_s / 60:.1f} minutes"
        yield from (f"error: {problem}" for problem in self.state.problems)

    def save(self) -> None:
        made = self._path.with_suffix(".new")
        made.write_bytes(msgspec.json.format(msgspec.json.encode(self.state)))
        made.replace(self._path)
        self._saved_at = time.monotonic()

    def _keep(self, how_far: str) -> None:
        now = time.monotonic()
        if now > self._saved_at + SAVE_S:
            self.save()
        if now > self._said_at + SAY_S:
            self._said_at = now
            say(how_far)

    def _problem(self, text: str) -> None:
        if text not in self.state.problems:
            self.state.problems.append(text)
            say(f"error: {text}")


def _begin() -> None:
    gc.freeze()  # Modules stay: no run need look through them for rubbish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends, once the seeds that are being played are over.


def _play(name: str, seed: int) -> tuple[Played, float]:
    """Play a seed; and how long a processor took for it."""
    since = time.process_time()
    return play(name, seed), time.process_time() - since


def _hunt(name: str) -> tuple[int | None, float]:
    """The seed that finds a planted bug, and how long a processor took for the hunt."""
    since = time.process_time()
    found = hunt(name)
    return found.seed if found is not None else None, time.process_time() - since


def _line(name: str, totals: Totals) -> str:
    counts = (totals.seeds, totals.publishes, totals.rows, totals.lost, totals.false, totals.broken)
    return COLUMNS.format(name, *(f"{each:,}" for each in counts), f"{totals.took_s / 60:.1f}")


def described() -> str:
    """The commit, and whether files differ from it."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--match="]
    return subprocess.run(asked, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, help="of each scenario [500; 1000 of churn]")
    parser.add_argument("--only", nargs="+", choices=[*SERIES, "hunts", "suite"], help="these parts alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="processes [one for each processor]")
    parser.add_argument("--state", type=Path, default=ROOT / ".soak.json", help="where progress is kept [.soak.json]")
    options = parser.parse_args()
    parts = options.only or [*SERIES, "hunts", "suite"]
    soak = Soak(options.state, options.jobs, options.seeds)
    try:
        soak.play(parts)
        if "suite" in parts:
            soak.run_suite()
    except KeyboardInterrupt:
        soak.save()
        say(f"interrupted; the same command goes on from {options.state}")
        return 130
    for line in soak.report():
        say(line)
    return 1 if soak.state.problems else 0


if __name__ == "__main__":
    sys.exit(main())
