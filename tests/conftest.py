"""What all tests share: Hypothesis without stopwatch, markers that follow from the folder, and what runs come to."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
# `make test` looks for tests with these markers here, and nowhere else.
SYSTEM = [HERE / name for name in ("system", "spark_jobs")]
COMPUTE = [HERE / name for name in ("experiments", "protocols", "queries", "sim")]
# What takes longest begins first: two files run at a time, and the last should not run by itself.
LONGEST = (
    "system/test_compose.py",
    "system/test_placement_apart.py",
    "system/test_spark_queries.py",
    "spark_jobs/test_compile.py",
    "spark_jobs/test_live.py",
    "system/test_paper_queries.py",
    "system/test_demo.py",
    "system/test_moving.py",
    "system/test_cli.py",
    "system/test_streams.py",
)

# A busy machine makes an example slow, not wrong; a failure prints the line that repeats it.
settings.register_profile("peerd", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("peerd")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folders = item.path.parents
        if SYSTEM[0] in folders:
            item.add_marker(pytest.mark.system)
        elif item.get_closest_marker("slow") and any(each in folders for each in COMPUTE):
            item.add_marker(pytest.mark.compute)
        if item.get_closest_marker("system") and not any(each in folders for each in SYSTEM):
            raise pytest.UsageError(
                f"{item.nodeid}: what starts daemons or Spark stands in tests/system or tests/spark_jobs"
            )
    places = {HERE / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """Many tests look for what was left behind: they need not look through all that was imported."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write golden files anew; read the difference")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(scope="session")
def one_spark() -> Iterator[Any]:
    """The Spark of this process: there can be one, and all tests of a worker share it."""
    pytest.importorskip("pyspark")
    from tests.spark_jobs.frames import session

    yield from session()


@pytest.fixture(scope="module")
def spark(one_spark: Any) -> Any:
    """A session with settings of its own, in the Spark that all share."""
    return one_spark.newSession()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what tests have noted, and what the seeds of the simulator came to."""
    totals: dict[str, Counter[str]] = {}
    for report in terminalreporter.getreports("passed"):
        for kind, value in report.user_properties:
            if kind == "note":
                terminalreporter.write_line(str(value))
            elif kind == "played":
                name, seeds, publishes, rows = value
                totals.setdefault(name, Counter()).update(seeds=seeds, publishes=publishes, rows=rows)
    for name, total in sorted(totals.items()):
        terminalreporter.write_line(
            f"{name}: {total['seeds']} seeds, {total['publishes']} publishes accepted, {total['rows']} rows delivered;"
            " lost 0, duplicate 0, spurious 0"
        )


def pytest_unconfigure() -> None:
    """What is frozen outlives the interpreter, and DuckDB complains of that in a hundred lines."""
    gc.unfreeze()
