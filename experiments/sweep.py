"""Run the cells of an experiment, here or as Spark jobs, and keep what they found.

A cell is a plain function of a module with some parameters; what it returns can be written as JSON. Every result is a
line of `OUT/NAME.jsonl` as soon as it is there, so a run that was interrupted goes on where it was. A cell is known by
its parameters alone: after a change to the code, `--fresh` forgets the former results.

    --master here          in this process, one cell after the other
    --master local[2]      as Spark jobs, two at a time on this machine
    --master spark://…     as Spark jobs on a cluster, whose workers have this repository on their PYTHONPATH
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from spark_jobs.session import NoSession, SessionSettings, start_session

if TYPE_CHECKING:
    from pyspark import SparkContext

Result = TypeVar("Result")
Cell = Mapping[str, Any]
"""The parameters of one call: numbers, strings and lists of them."""

HERE: Final = "here"
OUT: Final = Path("build/experiments")
PROGRESS_S: Final = 10.0


class Options(NamedTuple):
    """What every experiment can be told."""

    scale: float = 1.0  # 1 is the paper's size.
    seed: int = 1
    out: Path = OUT
    master: str = HERE
    is_fresh: bool = False


def parser(description: str, scale: float, seed: int = 1) -> argparse.ArgumentParser:
    """The arguments of an experiment; it may add its own."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--scale", type=float, default=scale, help="1 is the paper's size (default: %(default)s)")
    found.add_argument("--seed", type=int, default=seed, help="what is drawn is drawn from it (default: %(default)s)")
    found.add_argument("--out", type=Path, default=OUT, help="folder of results and plots (default: %(default)s)")
    found.add_argument("--master", default=HERE, help="here, local[2] or spark://HOST:PORT (default: %(default)s)")
    found.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    return found


def options(arguments: argparse.Namespace) -> Options:
    return Options(arguments.scale, arguments.seed, arguments.out, arguments.master, arguments.fresh)


def run(name: str, function: Callable[..., Result], cells: Sequence[Cell], chosen: Options) -> list[Result]:
    """What the function returns for each cell, in their order; what an earlier run has found is taken from there."""
    log = _Log(chosen.out / f"{name}.jsonl", is_fresh=chosen.is_fresh)
    missing = [cell for cell in cells if _key(cell) not in log.results]
    if missing:
        progress = _Progress(name, len(cells), len(missing))
        with _runner(chosen.master) as compute:
            for cell, result in compute(function, missing):
                log.add(cell, result)
                progress.one_more()
    return [log.results[_key(cell)] for cell in cells]


def _key(cell: Cell) -> str:
    return json.dumps(dict(cell), sort_keys=True)


class _Log:
    """The results so far, in a file of JSON lines."""

    def __init__(self, path: Path, *, is_fresh: bool) -> None:
        self._path = path
        self.results: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_fresh or not path.exists():
            path.write_text("")
        whole = path.read_text().rpartition("\n")[0]  # The last line of an interrupted run may not be whole.
        for line in whole.splitlines():
            known = json.loads(line)
            self.results[_key(known["cell"])] = known["result"]
        path.write_text(whole + "\n" if whole else "")

    def add(self, cell: Cell, result: Any) -> None:
        line = json.dumps({"cell": dict(cell), "result": result})
        with self._path.open("a") as file:
            file.write(line + "\n")
        self.results[_key(cell)] = json.loads(line)["result"]  # As the next run will read it.


class _Progress:
    """Says now and then how far a sweep is."""

    def __init__(self, name: str, cells: int, missing: int) -> None:
        self._name, self._cells, self._done = name, cells, cells - missing
        self._known = self._done
        self._began = self._said = time.monotonic()

    def one_more(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._said < PROGRESS_S:
            return
        self._said = now
        left_s = (now - self._began) / (self._done - self._known) * (self._cells - self._done)
        print(f"{self._name}: {self._done} of {self._cells} cells, about {left_s:.0f} s left", file=sys.stderr)


Found = Iterator[tuple[Cell, Any]]
Compute = Callable[[Callable[..., Any], Sequence[Cell]], Found]


@contextmanager
def _runner(master: str) -> Iterator[Compute]:
    """How cells are computed at a master; results come as they are found."""
    if master == HERE:
        yield lambda function, cells: ((cell, function(**cell)) for cell in cells)
        return
    try:
        session, _ = start_session(SessionSettings(master=master), lambda what: print(what, file=sys.stderr))
    except NoSession as reason:
        sys.exit(f"error: no sweep at {master}: {reason}\nhint: --master {HERE} needs no Spark.")
    try:
        yield lambda function, cells: _spark(session.sparkContext, function, cells)
    finally:
        session.stop()


def _spark(context: SparkContext, function: Callable[..., Any], cells: Sequence[Cell]) -> Found:
    """A job for each cell, as many at a time as there are slots: so each result can be kept when it comes."""
    module = sys.modules[function.__module__].__spec__
    assert module is not None, "the function is one of a module, so that a worker can import it"
    call = _Call(module.name, function.__qualname__)

    def job(cell: Cell) -> Any:
        return context.parallelize([dict(cell)], 1).map(call).collect()[0]

    with ThreadPoolExecutor(context.defaultParallelism) as threads:
        jobs = {threads.submit(job, cell): cell for cell in cells}
        try:
            for done in as_completed(jobs):
                yield jobs[done], done.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class _Call:
    """A function by its name: what travels to a worker is no code, and `python -m` may call the module __main__."""

    module: str
    name: str

    def __call__(self, cell: Cell) -> Any:
        return getattr(importlib.import_module(self.module), self.name)(**cell)
