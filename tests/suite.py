"""`make test` and `make check`: as many checks and tests at a time as two processors bear, and one summary of all.

`make test` (python -m tests.suite) has three phases:

1. static beside quick: linters and types; tests that are quick, or that use the network.
2. system beside compute: what starts daemons, containers or Spark, two at a time; and what only computes, such as the
   seeds of the simulator, with as much of the processors as the others leave.
3. alone: what measures times or memory, with nothing beside it.

`make check` (python -m tests.suite check) is the first phase without the slow tests.

At the end stand what the static checks found, the tests that failed, of all parts, and as the last line a summary as
pytest prints it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from tests import conftest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
END_S = 10.0
INTERRUPTED = 128 + signal.SIGINT
COLOURS = ("--color=yes",) if sys.stdout.isatty() else ()
PYTEST = (str(BIN / "pytest"), "-q", "--durations=15", *COLOURS)
STATIC = " && ".join(f"{BIN}/{command}" for command in ("ruff format --check --quiet", "ruff check --quiet", "mypy"))
# The quick ones often wait for the network: there are more workers than processors.
QUICK = (*PYTEST, "-n", "4", "-m", "not compute and not system and not alone")
# Those of `make check` wait less, and each worker takes seconds to begin.
CHECK = (*PYTEST, "-n", str(min((os.cpu_count() or 2) + 1, 8)), "-m", "not slow and not system and not alone")
COMPUTE = ("nice", "-n", "10", *PYTEST, "-n", "2", "-m", "compute and not alone", *map(str, conftest.COMPUTE))
# One worker takes a whole file, so that tests share its networks; the order of files is that of tests/conftest.py.
SYSTEM = (
    *PYTEST,
    "-n",
    "2",
    "--dist",
    "loadfile",
    "--no-loadscope-reorder",
    "-m",
    "system and not alone",
    *map(str, conftest.SYSTEM),
)
# Only the files with such tests: with all 4,000 tests in memory, 64 peers in one process take twice as long.
MEASURING = (path for path in sorted(conftest.HERE.rglob("test_*.py")) if "pytest.mark.alone" in path.read_text())
ALONE = (*PYTEST, "-m", "alone", *map(str, MEASURING))
PHASES = {
    "test": (
        {"static": ("sh", "-c", STATIC), "quick": QUICK},
        {"system": SYSTEM, "compute": COMPUTE},
        {"alone": ALONE},
    ),
    "check": ({"static": ("sh", "-c", STATIC), "quick": CHECK},),
}
KINDS = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
SUMMARY = re.compile(r"^(?:=+ )?(?=.*\b(?:passed|failed|skipped|error|no tests ran))(.+) in [\d.]+s\b")


class Part:
    """One command; its lines are printed with its name, and the last summary of pytest's among them is kept."""

    def __init__(self, name: str, command: tuple[str, ...]) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []  # What names them: lines of pytest's summary, or all that a static check says.
        self.took_s = 0.0
        self.status = 0
        self._began_at = time.monotonic()
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    def end(self) -> None:
        """Ctrl-C reaches the command as well, so it should be ending; it is killed if it does not."""
        self.wait(END_S)
        self._process.terminate()
        self.wait()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            print(f"{self.name:8}{line}", end="", flush=True)
            plain = COLOUR.sub("", line)
            if found := SUMMARY.match(plain):
                self.counts = counted(found[1])
            elif self.name == "static" or plain.startswith(("FAILED ", "ERROR ")):
                self.failures.append(line.rstrip())
        self.status = self._process.wait()
        self.took_s = time.monotonic() - self._began_at
        if self.status and not self.counts["failed"] and not self.counts["error"]:
            self.counts["error"] += 1  # It did not get as far as a test.


def counted(summary: str) -> Counter[str]:
    """How many tests there were of each kind.

    >>> counted("1 failed, 20 passed, 2 errors")["error"]
    2
    """
    found = re.findall(r"(\d+) (\w+?)s?\b", summary)
    return Counter({kind: int(number) for number, kind in found if kind in KINDS})


def main(name: str = "test") -> int:
    # A shell that starts a job in the background has it ignore SIGINT; tests that send Ctrl-C would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began_at = time.monotonic()
    done: list[Part] = []
    for phase in PHASES[name]:
        parts = [Part(part, command) for part, command in phase.items()]
        try:
            for part in parts:
                part.wait()
        except KeyboardInterrupt:
            for part in parts:
                part.end()
            return INTERRUPTED
        done += parts
    counts: Counter[str] = Counter()
    for part in done:
        counts.update(part.counts)
        print(f"{part.name:8}{part.took_s:5.0f} s, {'failed' if part.status else 'well'}")
    for failure in (each for part in done if part.status for each in part.failures):
        print(failure)
    took_s = time.monotonic() - began_at
    said = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
    clock = f"{int(took_s // 3600)}:{int(took_s // 60 % 60):02}:{int(took_s % 60):02}"
    print(f" {said} in {took_s:.2f}s ({clock}) ".center(int(os.environ.get("COLUMNS", "80")), "="))
    return 1 if any(part.status for part in done) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
