"""`make test`: the static checks and every test, as many at a time as two processors bear, and one summary of them all.

1. static beside quick: linters and types; tests that are quick, or that use the network.
2. system beside compute: what starts daemons, containers or Spark, two at a time; and what only computes, such as the
   seeds of the simulator, with as much of the processors as the others leave.
3. alone: what measures times or memory, with nothing beside it.

At the end stand the tests that failed, of all parts, and as the last line a summary as pytest prints it.
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
PYTEST = (str(BIN / "pytest"), "-q", "--durations=15")
STATIC = " && ".join(f"{BIN}/{command}" for command in ("ruff format --check --quiet", "ruff check --quiet", "mypy"))
# The quick ones often wait for the network: there are more workers than processors.
QUICK = (*PYTEST, "-n", "4", "-m", "not compute and not system and not alone")
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
PHASES = (
    {"static": ("sh", "-c", STATIC), "quick": QUICK},
    {"system": SYSTEM, "compute": COMPUTE},
    {"alone": ALONE},
)
KINDS = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")
SUMMARY = re.compile(r"^(?:=+ )?(?=.*\b(?:passed|failed|skipped|error|no tests ran))(.+) in [\d.]+s\b")


class Part:
    """One command; its lines are printed with its name, and the last summary of pytest's among them is kept."""

    def __init__(self, name: str, command: tuple[str, ...]) -> None:
        self.name, self._command = name, command
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []  # The lines of pytest's summary that name them.
        self.took_s = 0.0
        self.status = 0

    def run(self) -> None:
        began_at = time.monotonic()
        process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{self.name:8}{line}", end="", flush=True)
            if found := SUMMARY.match(line):
                self.counts = counted(found[1])
            elif line.startswith(("FAILED ", "ERROR ")):
                self.failures.append(line.rstrip())
        self.status = process.wait()
        self.took_s = time.monotonic() - began_at
        if self.status and not self.counts["failed"] and not self.counts["error"]:
            self.counts["error"] += 1  # It did not get as far as a test.


def counted(summary: str) -> Counter[str]:
    """How many tests there were of each kind.

    >>> counted("1 failed, 20 passed, 2 errors")["error"]
    2
    """
    found = re.findall(r"(\d+) (\w+?)s?\b", summary)
    return Counter({kind: int(number) for number, kind in found if kind in KINDS})


def main() -> int:
    # A shell that starts a job in the background has it ignore SIGINT; tests that send Ctrl-C would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began_at = time.monotonic()
    done: list[Part] = []
    for phase in PHASES:
        parts = [Part(name, command) for name, command in phase.items()]
        threads = [threading.Thread(target=part.run) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done += parts
    counts: Counter[str] = Counter()
    for part in done:
        counts.update(part.counts)
        print(f"{part.name:8}{part.took_s:5.0f} s, {'failed' if part.status else 'well'}")
    for failure in (each for part in done for each in part.failures):
        print(failure)
    took_s = time.monotonic() - began_at
    said = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
    clock = f"{int(took_s // 3600)}:{int(took_s // 60 % 60):02}:{int(took_s % 60):02}"
    print(f" {said} in {took_s:.2f}s ({clock}) ".center(int(os.environ.get("COLUMNS", "80")), "="))
    return 1 if any(part.status for part in done) else 0


if __name__ == "__main__":
    sys.exit(main())
